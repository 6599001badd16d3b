"""The tables are made by running the samplers, and by nothing else."""

import jax
import numpy as np
import pytest

from momentem import cli
from momentem.reproduce import accuracy, grids, pictures, problems, reports, runs, speed, tables
from momentem.reproduce.contenders import NAMES, PAPERS, PLAIN, TUNED, contender

pytestmark = pytest.mark.usefixtures("quick_compilation")

FEW = ("HMC", "HMC-EM", TUNED["HMC-EM"])
SHORT = tables.TABLE_1._replace(num_warmup=30, num_draws=40, grids={})
SETTINGS = tables.TABLE_1.settings


@pytest.fixture
def few(monkeypatch):
    """HMC and its relatives alone, which every verdict is then about; no time is taken."""
    monkeypatch.setattr(accuracy, "NAMES", FEW)
    for module in (accuracy, pictures):
        monkeypatch.setattr(module, "PLAIN", {"HMC-EM": "HMC"})
    monkeypatch.setattr(accuracy, "RIEMANNIAN", ())
    monkeypatch.setattr(accuracy, "milliseconds", lambda *_: {name: [1.0] for name in FEW})
    monkeypatch.setitem(
        tables.TABLES, "table1", lambda _, *rest: tables._accuracy([SHORT], _two, *rest)
    )


_two = tables.Effort(num_seeds=2, shorter=1, rounds=1)


def test_all_ten_and_the_learnt_ones():
    problem = problems.gaussian(0, num=200)
    for name in NAMES:
        assert contender(name, problem, SETTINGS).init is not None
    assert NAMES[:10] == PAPERS
    assert set(NAMES) == {*PAPERS, *TUNED.values()}
    for table in (tables.TABLE_1.paper, tables.TABLE_2.paper, speed.PAPER):
        assert set(table) == set(PAPERS)
    assert set(PLAIN.values()) < set(PAPERS)


def test_posterior_of_the_gaussian_is_exact():
    """Against a grid."""
    problem = problems.gaussian(3, num=100)
    mu, tau = np.meshgrid(np.linspace(-1, 1, 401), np.linspace(0.05, 3, 600))
    theta = np.stack([mu, np.log(tau)], axis=-1).reshape(-1, 2)
    values = np.array(jax.vmap(problem.target.logdensity)(theta)) - theta[:, 1]
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    x = np.stack([mu, tau], axis=-1).reshape(-1, 2)
    mean = weights @ x
    np.testing.assert_allclose(mean, problem.mean, atol=1e-3)
    covariance = (x - mean).T @ ((x - mean) * weights[:, None])
    np.testing.assert_allclose(covariance, problem.covariance, atol=1e-3)


@pytest.mark.validate
def test_seeds_side_by_side_are_what_they_are_alone():
    several = [problems.gaussian(seed, num=100) for seed in (0, 1)]
    samplers = [contender("HMC", problem, SETTINGS) for problem in several]
    together = runs.run(several, samplers, 5, 10, seed=0).draws
    alone = runs.run([several[0]] * 2, [samplers[0]] * 2, 5, 10, seed=0).draws
    assert together.shape == (2, 15, 2)
    np.testing.assert_allclose(together[0], alone[0], rtol=1e-9)
    assert not np.allclose(together[1], alone[1])


@pytest.mark.validate
def test_same_seed_same_table(few, tmp_path):
    one, by_m_step = tables.reproduce("table1", out=tmp_path, seed=1)
    assert tables.reproduce("table1", seed=1) == [one, by_m_step]
    assert tables.reproduce("table1", seed=2)[0].rows != one.rows
    assert [row[0] for row in one.rows] == list(FEW)
    assert one.rows[0][1::2][:2] == ["0.0196", "0.0197"]  # the paper's
    assert len((tmp_path / "table1.csv").read_text().splitlines()) == 4
    assert "| HMC | 0.0196 | " in (tmp_path / "table1.md").read_text()
    assert (tmp_path / "table1-m-steps.md").is_file()
    assert (tmp_path / "table1.png").stat().st_size > 10_000


def test_grid_chooses_what_comes_nearest():
    """Of three step sizes for HMC, the two small ones do not move."""
    problem = problems.gaussian(0, num=500)
    settings = SETTINGS.set_sampler("HMC", 1.0, 0.0)
    assert (
        grids.choose_settings("HMC", problem, settings, (0.0,), 50, 200).step_sizes["HMC"] == 1e-2
    )


def test_judgement_is_of_the_draws():
    """Exact draws are found right, shifted and stretched ones are not, nor those that are no
    numbers."""
    problem = problems.gaussian(0)
    root = np.linalg.cholesky(problem.covariance)
    z = np.random.default_rng(0).normal(size=(4000, 2))
    right = runs.judge(problem, problem.mean + z @ root.T)
    assert right["mean"] < 0.1
    low, high = runs.extremes(right["covariance"])
    assert 0.9 < low <= high < 1.1
    assert right["ess"] > 0.7
    expected = np.sqrt(accuracy._expected_squares(problem))
    np.testing.assert_allclose([right["rmse0"], right["rmse1"]], expected, rtol=0.05)
    wrong = runs.judge(problem, problem.mean + (2 * z + 1) @ root.T)
    assert wrong["mean"] > 0.9
    assert runs.extremes(wrong["covariance"])[1] > 3.5
    broken = runs.judge(problem, np.where(z > 3, np.nan, z))
    assert np.isnan(runs.extremes(broken["covariance"])).all()


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.1, 0.9], "higher"),
        ([-1.0, -1.1, -0.9], "lower"),
        ([-1.0, 1.1, 0.1], "the same"),
        ([1.0, np.nan], "cannot be determined"),
        ([1.0], "cannot be determined"),
    ],
)
def test_difference_counts_outside_two_standard_errors(values, verdict):
    assert accuracy._difference(np.array(values)).startswith(verdict)


@pytest.mark.validate
def test_times_are_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(speed, "NAMES", ("HMC", "SGHMC"))
    monkeypatch.setattr(speed, "PLAIN", {})
    monkeypatch.setattr(speed, "SLOW", (("HMC", "SGHMC"),))
    problem = problems.gaussian(0, num=200)
    found = speed.milliseconds(problem, SETTINGS, rounds=2, seconds=1e-3)
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())
    monkeypatch.setattr(speed, "milliseconds", lambda *_: found)
    report = speed.compare({"one": problem, "two": problem, "three": problem}, SETTINGS, rounds=2)
    assert [row[0] for row in report.rows] == [*speed.NAMES, speed.BARE]
    assert report.notes[2].endswith("the paper's 7.17, 7.26, 7.06.")
    of_many = speed.compare({"one": problem}, SETTINGS, rounds=2, num_chains=3)
    assert of_many.name == "table3-chains"
    assert of_many.notes[0].endswith("chains side by side: 3.")
    assert pictures.speed_picture(report, tmp_path).stat().st_size > 5_000


def test_error_of_a_mean():
    assert reports.with_error(np.array([1.0, 2.0, 3.0])) == "2 ± 0.6"
    assert reports.with_error(np.array([1.0])) == "1"


@pytest.mark.validate
def test_command_line(few, monkeypatch, capsys, tmp_path):
    assert cli.main(["reproduce", "table1", "--quick"]) == 0
    assert "HMC-EM, fisher" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "table9"])
    monkeypatch.setenv("MOMENTEM_DATA", str(tmp_path))
    monkeypatch.setenv("MOMENTEM_CACHE", str(tmp_path))
    monkeypatch.setattr("momentem.reproduce.datasets.requests.get", _unreachable)
    assert cli.main(["reproduce", "table3"]) == 1
    assert "MOMENTEM_DATA" in capsys.readouterr().err
    with pytest.raises(ValueError, match="name must be one of"):
        tables.reproduce("table9")


def _unreachable(*args, **options):
    raise OSError("no network")
