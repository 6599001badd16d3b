"""The default sampler: right posteriors with nothing set, warm-up that ends by evidence, one
program."""

import sys

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.kernels import refinement
from momentem.run import loop
from momentem.tuning import path_length, step_size, warmup

pytestmark = pytest.mark.usefixtures("quick_compilation")

SAMPLE = sys.modules["momentem.sampling"]  # the package's name for it is the function's
SCALES = np.logspace(-4, 4, 9)
ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 20)))[0]
ILL = jnp.asarray(ROTATION @ np.diag(np.logspace(0, 4, 20)) @ ROTATION.T)


def scaled(x):
    return -0.5 * jnp.sum((x / SCALES) ** 2)


def ill_conditioned(x):
    return -0.5 * x @ ILL @ x


def skewed(x):
    """Logarithms of Gamma(3) variables."""
    return jnp.sum(3 * x - jnp.exp(x))


def two_modes(x):
    return jnp.logaddexp(-0.5 * jnp.sum((x - 9) ** 2), -0.5 * jnp.sum((x + 9) ** 2))


SKEWED_MEAN, SKEWED_VARIANCE = 0.9227843351, 0.3949340668  # psi(3), psi'(3)

# (log density, mean, variance, dimension)
PROBLEMS = {
    "scales": (scaled, np.zeros(9), SCALES**2, 9),
    "ill": (ill_conditioned, np.zeros(20), np.diag(np.linalg.inv(ILL)), 20),
    "skewed": (skewed, np.full(3, SKEWED_MEAN), np.full(3, SKEWED_VARIANCE), 3),
}


def z_scores(trace, mean, variance):
    """Errors of means and mean squares in MCSE."""
    draws = trace["posterior"].to_dataset()["position"]
    squares = (draws - mean) ** 2
    scores = []
    for values, truth in ((draws, mean), (squares, variance)):
        mcse = arviz_stats.mcse(values.to_dataset(name="x"), method="mean")["x"].values
        scores.append((values.mean(("chain", "draw")).values - truth) / mcse)
    return np.concatenate(scores)


def max_rhat(trace):
    return float(arviz_stats.rhat(trace["posterior"].to_dataset())["position"].max())


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.one_now
def test_right_posterior_with_nothing_set(name):
    logdensity, mean, variance, dim = PROBLEMS[name]
    trace = mt.sample(mt.density(logdensity, jnp.zeros(dim)), seed=3)
    # of at most 40 scores, a false alarm at 5 has a chance of 2e-5
    assert np.abs(z_scores(trace, mean, variance)).max() < 5
    assert max_rhat(trace) < 1.01
    assert trace["warmup_posterior"].sizes["draw"] < 1000
    assert trace["posterior"].sizes["draw"] == 1000


def test_wrong_posterior_is_caught():
    """The same test, of draws of a target with one scale 10 % off."""
    wrong = mt.density(lambda x: scaled(x * jnp.ones(9).at[4].set(1.1)), jnp.zeros(9))
    trace = mt.sample(wrong, seed=3)
    assert np.abs(z_scores(trace, np.zeros(9), SCALES**2)).max() > 5


def test_a_gaussian_takes_one_gradient_per_draw():
    trace = mt.sample(mt.density(scaled, jnp.zeros(9)), seed=3)
    stats = trace["sample_stats"].to_dataset()
    assert float(stats["n_steps"].mean()) < 1.1
    assert float(stats["acceptance_rate"].mean()) > 0.99


def test_warm_up_and_draws_are_one_program():
    traces = []

    def counted(x):
        traces.append(1)
        return skewed(x)

    target = mt.density(counted, jnp.zeros(3))
    sampler = mt.tuned_hmc_em(target)
    mt.sample(target, sampler, num_draws=50)
    before = loop._soon.num_compiled()
    mt.sample(target, sampler, num_draws=50, seed=1)
    assert loop._soon.num_compiled() == before
    fresh = mt.density(lambda x: skewed(x) + 0.0, jnp.zeros(3))
    mt.sample(fresh, num_draws=50)
    assert loop._soon.num_compiled() == before + 1


def test_modes_that_do_not_meet_are_warned_of():
    target = mt.density(two_modes, jnp.zeros(2))
    with pytest.warns(mt.SamplingWarning, match="R-hat"):
        mt.sample(target, spread=9.0, num_draws=300)


@pytest.mark.validate
def test_many_dimensions_get_a_low_rank_mass():
    scales = jnp.asarray(np.exp(np.random.default_rng(1).normal(size=250)))
    target = mt.density(lambda x: -0.5 * jnp.sum((x / scales) ** 2), initial=jnp.zeros(250))
    trace = mt.sample(target, num_draws=500, seed=1)
    assert trace["em"].to_dataset()["final_directions"].shape == (20, 250)
    # 250 scores beyond 5: 1.4e-4
    z = z_scores(trace, np.zeros(250), np.asarray(scales) ** 2)
    assert np.abs(z).max() < 5.5


def test_one_chain_and_single_precision():
    target = mt.density(skewed, jnp.zeros(3, jnp.float32))
    trace = mt.sample(target, num_chains=1, seed=2)
    draws = trace["posterior"].to_dataset()["position"]
    assert draws.dtype == np.float32
    mean = np.full(3, SKEWED_MEAN, np.float32)
    assert np.abs(z_scores(trace, mean, np.full(3, SKEWED_VARIANCE, np.float32))).max() < 5


def test_settles_no_sooner_than_chains_agree(monkeypatch):
    logdensity, _, _, dim = PROBLEMS["skewed"]
    target = mt.density(logdensity, jnp.zeros(dim))
    monkeypatch.setattr(warmup, "DISAGREEMENT", 0.0)
    fresh = mt.density(lambda x: logdensity(x) + 0.0, jnp.zeros(dim))
    assert mt.sample(fresh, num_warmup=200)["warmup_posterior"].sizes["draw"] == 200
    monkeypatch.undo()
    assert mt.sample(target, num_warmup=200)["warmup_posterior"].sizes["draw"] < 200


def narrow_far_out(x):
    """Standard normal in x_0; the others are 12 times as narrow where x_0 > 4."""
    log_scale = -2.5 * jax.nn.sigmoid(4 * (x[0] - 4))
    return -0.5 * x[0] ** 2 - jnp.sum(0.5 * (x[1:] * jnp.exp(-log_scale)) ** 2 + log_scale)


def run_with_one_chain_far_out(is_renamed=False):
    """Of 32 chains, one starts where the step size of the others is far too long."""
    starts = np.random.default_rng(0).normal(size=(32, 11))
    starts[7] = np.eye(11)[0] * 5
    # under another name it is another program
    logdensity = (lambda x: narrow_far_out(x)) if is_renamed else narrow_far_out
    target = mt.density(logdensity, jnp.zeros(11))
    return mt.sample(target, num_chains=32, positions=starts, num_warmup=2000, num_draws=200)


def test_a_chain_in_a_narrow_place_takes_shorter_steps():
    trace = run_with_one_chain_far_out()
    assert max_rhat(trace) < 1.02
    # the chain leaves in iterations that refine paths, one of four
    assert trace["warmup_posterior"].sizes["draw"] < 2000
    # of 44 scores, a false alarm at 5 has a chance of 3e-5
    assert np.abs(z_scores(trace, np.zeros(11), np.ones(11))).max() < 5


@pytest.mark.filterwarnings("ignore::momentem.SamplingWarning")
def test_without_shorter_steps_it_stays(monkeypatch):
    monkeypatch.setattr(refinement, "LEVELS", 0)
    trace = run_with_one_chain_far_out(is_renamed=True)
    assert max_rhat(trace) > 1.02


def turns_of(periods, path=1.5, num_iterations=2000, refused=0.0):
    """Turns of four chains whose coordinates swing around 3 with these periods over 2 pi."""
    rng, shape = np.random.default_rng(1), (4, len(periods))
    state, angle = path_length.no_turns(jnp.zeros(len(periods))), path / np.asarray(periods)
    x = rng.normal(size=shape)
    for _ in range(num_iterations):
        is_refused = rng.uniform(size=(4, 1)) < refused
        new = np.where(is_refused, x, x * np.cos(angle) + rng.normal(size=shape) * np.sin(angle))
        state = path_length.add_moves(
            state, jnp.full(len(periods), 3.1), *map(jnp.asarray, (x + 3, new + 3))
        )
        x = new
    return state


@pytest.mark.parametrize("refused", [0.0, 0.3])
@pytest.mark.validate
def test_the_path_is_a_quarter_turn_of_the_slowest(refused):
    found = path_length.lengthen(
        turns_of([1.0, 1.3, 0.8], refused=refused), jnp.array(1.5), 1.0, 3.0
    )
    # the correlation's error of .016 is 1 % of the path; chance takes 1 % off it
    assert float(found) == pytest.approx(1.3 * np.pi / 2, rel=0.05)


def test_a_path_within_chance_of_a_quarter_turn_stays():
    state = turns_of(np.ones(30), path=np.pi / 2, num_iterations=50)
    assert (
        float(path_length.lengthen(state, jnp.array(np.pi / 2), np.pi / 2, 3.0)) < 1.03 * np.pi / 2
    )


def test_the_path_is_longer_where_a_tail_is_heavy():
    """Of a Gaussian a quarter turn; more of the logarithm of an exponential variable."""
    heavy = mt.density(lambda x: jnp.sum(x - jnp.exp(x)), jnp.zeros(3))
    trace = mt.sample(heavy, num_draws=100, num_chains=16)
    assert 1.05 * np.pi / 2 < float(mt.learnt_from(trace).path) <= 0.75 * np.pi
    whitened = mt.sample(mt.density(scaled, jnp.zeros(9)), num_draws=100)
    assert float(mt.learnt_from(whitened).path) < 1.05 * np.pi / 2


def test_dual_averaging_finds_the_rate():
    """Of an acceptance rate exp(-eps), the step size at which it is .8."""

    def step(averaging, _):
        return step_size.add_rate(averaging, jnp.exp(-jnp.exp(averaging.log_step)), 0.8), None

    averaging, _ = jax.lax.scan(step, step_size.start(jnp.array(2.0)), None, length=400)
    assert float(jnp.exp(averaging.log_average)) == pytest.approx(-np.log(0.8), rel=0.05)


def test_what_was_tuned_moves_the_next_run_without_warm_up():
    logdensity, mean, variance, dim = PROBLEMS["scales"]
    target = mt.density(logdensity, jnp.zeros(dim))
    first = mt.sample(target, num_draws=100, seed=3)
    sampler = mt.fixed(mt.kernels.rotating_hmc(target), mt.learnt_from(first))
    positions = mt.last_positions(first, target)
    trace = mt.sample(target, sampler, num_warmup=0, positions=positions, seed=4)
    assert np.abs(z_scores(trace, mean, variance)).max() < 5  # a false alarm: 1e-5


def test_draws_are_doubled_while_they_are_too_few(tmp_path, monkeypatch):
    """The draws of one run, in memory and in a log, by one program."""
    monkeypatch.setattr(SAMPLE, "DRAWS", 125)
    target = mt.density(lambda x: skewed(x) + 0.0, jnp.zeros(3))
    before = loop._soon.num_compiled()
    trace = mt.sample(target, seed=5)
    assert loop._soon.num_compiled() == before + 1
    num_draws = trace["posterior"].sizes["draw"]
    assert num_draws in (250, 500, 1000, 2000)
    asked = mt.sample(target, seed=5, num_draws=num_draws)
    logged = mt.sample(target, seed=5, out=tmp_path / "run")
    again = mt.sample(target, seed=5, out=tmp_path / "run", resume=True)
    for other in (asked, logged, again):
        np.testing.assert_array_equal(
            other["posterior"].to_dataset()["position"].values,
            trace["posterior"].to_dataset()["position"].values,
        )


@pytest.mark.filterwarnings("ignore::momentem.SamplingWarning")
def test_draws_are_not_doubled_in_vain(monkeypatch):
    """Not where their number is given, nor if another sampler is, nor where chains are apart."""
    monkeypatch.setattr(SAMPLE, "DRAWS", 125)
    target = mt.density(skewed, jnp.zeros(3))
    slow = mt.hmc(target, step_size=0.01, num_steps=1)
    apart = mt.density(two_modes, jnp.zeros(2))
    runs = {
        "given": mt.sample(target, num_draws=125),
        "another": mt.sample(target, slow, num_warmup=0),
        "apart": mt.sample(apart, spread=9.0),
        "one chain": mt.sample(target, num_chains=1),
    }
    sizes = {name: trace["posterior"].sizes["draw"] for name, trace in runs.items()}
    assert sizes == dict.fromkeys(runs, 125)


@pytest.mark.filterwarnings("ignore::momentem.SamplingWarning")
def test_draws_are_doubled_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(SAMPLE, "DRAWS", 25)
    monkeypatch.setattr(SAMPLE, "MOST_DRAWS", 50)
    target = mt.density(scaled, jnp.zeros(9))
    assert mt.sample(target)["posterior"].sizes["draw"] == 50


def test_resumes_after_a_warm_up_that_ended_early(tmp_path):
    target = mt.density(skewed, jnp.zeros(3))
    whole = mt.sample(target, num_draws=300, seed=5)
    mt.sample(target, num_draws=100, seed=5, out=tmp_path / "run")
    resumed = mt.resume(tmp_path / "run", target, num_draws=300)
    for group in ("posterior", "warmup_posterior"):
        np.testing.assert_array_equal(
            resumed[group].to_dataset()["position"].values,
            whole[group].to_dataset()["position"].values,
        )
