"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the repository, and read
backwards.

A recipe is a numbered list of files and a block of code that starts with the name of its file. In
the list, "add `x`" is an import or a line at the end of the file, and "add `x` to `y`" goes behind
`y`, inside its bracket if there is one.
"""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.reproduce import datasets
from momentem.testing import check_kernel, check_mass, check_sampler, invariance

from known_targets import skewed, skewed_exact
from processes import run_alone

pytestmark = [pytest.mark.validate, pytest.mark.usefixtures("quick_compilation")]

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def recipes():
    """By title, the files to touch, each with what is to be done, and the code with its file."""
    part = PAGE.split("\n## Recipes\n")[1].split("\n## ")[0]
    found = {}
    for section in part.split("\n### ")[1:]:
        title, body = section.split("\n", 1)
        items = re.findall(r"^\d+\. `([^`]+)`: (.*(?:\n {3}.*)*)", body, re.MULTILINE)
        ((path, code),) = re.findall(r"```python\n# (\S+)\n(.*?)```", body, re.DOTALL)
        found[title] = (items, path, code)
    return found


def put(text, added, place):
    """The text with `added` at its place."""
    if place:
        found = re.search(rf"^ *{re.escape(place)}", text, re.MULTILINE)
        assert found, f"{place!r} is not there"
        end = text.index("\n", found.start())
        bracket = re.search(r"[\[({]", text[found.start() : end])
        at = found.start() + bracket.end() if bracket else found.end()
        return f"{text[:at]} {added} {text[at:]}"
    if added.startswith("from "):
        at = text.index("\nfrom momentem") + 1
        return f"{text[:at]}{added}\n{text[at:]}"
    return f"{text}\n{added}\n"


def follow(recipe, root):
    """Do what the recipe says in the repository at `root`."""
    items, code_path, code = recipe
    assert code_path in dict(items)
    for path, instructions in items:
        file = root / path
        assert file.parent.is_dir(), path
        if path == code_path:
            file.write_text(f"{file.read_text()}\n\n{code}" if file.is_file() else code)
        for added, place in re.findall(r"add\s+`([^`]+)`(?:\s+to\s+`([^`]+)`)?", instructions):
            file.write_text(put(file.read_text(), added, place))


def copy_repository(folder):
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    return folder


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A copy of the repository in which all recipes were followed."""
    root = copy_repository(tmp_path_factory.mktemp("followed"))
    for recipe in recipes().values():
        follow(recipe, root)
    return root


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Modules from the code of the recipes, with some text replaced."""
    folder = tmp_path_factory.mktemp("added")

    def load(title, *replaced):
        code = recipes()[title][2]
        for old, new in replaced:
            assert old in code
            code = code.replace(old, new)
        path = folder / f"added_{len(list(folder.iterdir()))}.py"
        path.write_text(code)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_there_are_five():
    assert list(recipes()) == ["A kernel", "An M-step", "A mass", "A dataset", "A command"]
    for items, _, _ in recipes().values():
        assert items[-1][0] == "CHANGELOG.md"


def test_files_that_exist_are_named_as_they_are():
    new = {code_path for _, code_path, _ in recipes().values()}
    new |= {"tests/kernels/test_persistent.py", "tests/cli/test_summary_command.py"}
    for items, _, _ in recipes().values():
        for path, _ in items:
            assert path in new or (ROOT / path).is_file(), path


def test_what_was_added_is_tidy(followed):
    ruff = [sys.executable, "-m", "ruff"]
    where = {"cwd": followed, "capture_output": True, "text": True}
    for arguments in (["check", "--fix", "--no-cache", "."], ["format", "--no-cache", "."]):
        done = subprocess.run([*ruff, *arguments], **where)
        assert done.returncode == 0, done.stdout + done.stderr
    for _, path, code in recipes().values():
        assert (followed / path).read_text().endswith(code), f"ruff formats {path}"


USES_ALL = """
import importlib, tempfile
from pathlib import Path
import conftest
import jax.numpy as jnp, momentem as mt
import test_conformance, test_tree
from momentem import cli

root = Path({root!r})
assert Path(mt.__file__).is_relative_to(root)

# the tables, the page and the tree
kernel = test_conformance.KERNELS["persistent_hmc"]
assert "hmc-em pairs dense" in test_conformance.SAMPLERS
mt.testing.check_mass(test_conformance.MASSES["scalar"])
page = (root / "docs/api.md").read_text()
for name in ("persistent_hmc", "pairs", "ScalarMass", "scalar_mass", "tiny"):
    assert name in page, name
for path in test_tree.SOURCE.rglob("*.py"):
    test_tree.test_imports_go_down_only(path)
for name in ("kernels._persistent", "em.m_steps._pairs", "masses.scalar", "cli.summary"):
    package, _, module = name.rpartition(".")
    assert getattr(importlib.import_module("momentem." + package), module).__name__.endswith(name)

# all three together, to a trace and back, and the command on it
target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
start = mt.Learnt(mt.scalar_mass(0.5, 2), 0.5)
steps = mt.m_steps.pairs(), mt.e_steps.constant(40)
sampler = mt.monte_carlo_em(kernel(target), start, *steps)
folder = tempfile.mkdtemp()
trace = mt.sample(target, sampler, num_draws=50, num_warmup=20, progress=False, out=folder + "/run")
assert isinstance(mt.learnt_from(trace).mass, mt.ScalarMass)
assert cli.main(["summary", folder + "/run"]) == 0
assert cli.main(["summary", folder + "/none"]) == 1
"""


def test_the_copy_has_all_that_was_added(followed):
    places = f"{followed / 'src'}:{followed / 'tests'}"
    printed = run_alone(USES_ALL.format(root=str(followed)), PYTHONPATH=places, **QUICK)
    assert "r_hat" in printed
    assert "position[1]" in printed


LEARNT = mt.Learnt(mt.dense_mass(jnp.array([[1.5, 0.5], [0.5, 1.0]])), jnp.array(0.9))


def p_value(make):
    kernel = make(mt.density(skewed, initial=jnp.zeros(2)))
    return invariance(jax.random.key(1), kernel, LEARNT, skewed_exact, num_draws=20_000)


def test_the_kernel_conforms(load):
    check_kernel(load("A kernel").persistent_hmc)


def test_the_kernel_s_and_the_m_step_s_sampler_conforms(load):
    make, m_step = load("A kernel").persistent_hmc, load("An M-step").pairs()

    def learning(target):
        mass = mt.dense_mass(jnp.diag(jnp.ones_like(target.initial)))
        return mt.monte_carlo_em(make(target), mt.Learnt(mass, 0.1), m_step, NINE)

    check_sampler(learning)


NINE = mt.e_steps.constant(9)
M_STEPS = {"draws": mt.m_steps.draws(), "fisher": mt.m_steps.fisher()}


def test_the_kernel_is_exact_and_broken_ones_are_not(load):
    # 5 tests of 20,000 draws: a right kernel falls below 1e-3 with a chance of at most 0.5 %
    assert p_value(load("A kernel").persistent_hmc) > 1e-3
    sabotages = [
        ("jnp.sqrt(1 - a**2)", "(1 - a)"),  # the momentum cools
        ("jnp.where(is_accepted, new, old)", "new"),  # no accept step
    ]
    for sabotage in sabotages:
        assert p_value(load("A kernel", sabotage).persistent_hmc) < 1e-5, sabotage


def test_the_kernel_with_a_reused_key_is_refused(load):
    broken = load("A kernel", ("accept_move(accept_key,", "accept_move(refresh_key,"))
    with pytest.raises(Exception, match="key"):
        check_kernel(broken.persistent_hmc)


COVARIANCE = np.array([[4.0, 0.6], [0.6, 1.0]])


def learn(mass, m_step):
    """The mass that was learnt on a Gaussian with this covariance."""
    inverse = jnp.asarray(np.linalg.inv(COVARIANCE))
    target = mt.density(lambda x: -0.5 * x @ inverse @ x, initial=jnp.zeros(2))
    kernel, start = mt.kernels.hmc(target, num_steps=6, jitter=0.5), mt.Learnt(mass, 0.5)
    averaging = mt.schedules.latest()
    sampler = mt.monte_carlo_em(kernel, start, m_step, mt.e_steps.geometric(64), averaging)
    sizes = {"num_draws": 1, "num_warmup": 600, "num_chains": 16, "progress": False}
    return mt.learnt_from(mt.sample(target, sampler, **sizes), type(mass)).mass


def test_the_m_step_learns_the_covariance(load):
    mass = learn(mt.dense_mass(0.5 * jnp.eye(2)), load("An M-step").pairs())
    # a few thousand draws: 3 % of Monte Carlo error in a variance
    np.testing.assert_allclose(mass.inverse_mass, COVARIANCE, atol=0.2 * COVARIANCE.max())


def test_the_mass_conforms_and_broken_ones_do_not(load):
    check_mass(load("A mass").scalar_mass(2.0, 3))
    sabotages = {
        "colour": ("whitened / jnp.sqrt(", "whitened * jnp.sqrt("),
        "log_determinant": ("-len(self.ones) * jnp.log", "-jnp.log"),
        "contract": ("len(self.ones) * self.inverse_mass * matrix", "self.inverse_mass * matrix"),
    }
    for name, sabotage in sabotages.items():
        with pytest.raises(AssertionError, match=name):
            check_mass(load("A mass", sabotage).scalar_mass(2.0, 3))


@pytest.mark.parametrize("m_step", [pytest.param("draws", marks=pytest.mark.validate), "fisher"])
def test_the_mass_is_learnt(load, m_step):
    mass = learn(load("A mass").scalar_mass(0.5, 2), M_STEPS[m_step])
    # the mean variance is 2.5; the mean of the inverse's diagonal is 5 / (4 - 0.36) / 2 = 0.6868,
    # and the geometric mean of 2.5 and 1 / 0.6868 is 1.908
    expected = {"draws": 2.5, "fisher": 1.908}[m_step]
    np.testing.assert_allclose(mass.inverse_mass, expected, rtol=0.15)


@pytest.mark.parametrize("m_step", [pytest.param("draws", marks=pytest.mark.validate), "fisher"])
def test_the_mass_s_sampler_conforms(load, m_step):
    make = load("A mass").scalar_mass

    def learning(target):
        mass = jax.tree.map(lambda x: x.astype(target.initial.dtype), make(1.0, 3))
        return mt.hmc_em(target, 0.1, 3, mass, M_STEPS[m_step], NINE)

    check_sampler(learning)


def test_the_mass_goes_with_all_m_steps_that_it_declares(load):
    mass, target = load("A mass").scalar_mass(1.0, 3), mt.testing.minibatch_target(float)
    noisy = mt.kernels.sghmc(target, 3)
    m_steps = [mt.m_steps.momentum(), mt.m_steps.score(), mt.m_steps.noise(noisy)]
    for m_step in m_steps:
        sampler = mt.self_tuned(noisy, mass, m_step, NINE, step_size=0.01)
        state = jax.eval_shape(lambda s=sampler: s.init(jax.random.key(0), jnp.zeros((2, 3))))
        after = jax.eval_shape(lambda x, s=sampler: s.step(jax.random.key(0), x)[0], state)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert jax.tree.leaves(after) == jax.tree.leaves(state)  # shapes and dtypes


def test_the_dataset_is_found_and_another_file_refused(tmp_path, monkeypatch):
    names = dict(vars(datasets))
    exec(recipes()["A dataset"][2], names)
    content = b"1 2 0\n3 4 1\n"
    assert names["TINY"].sha256 == hashlib.sha256(content).hexdigest()
    monkeypatch.setenv("MOMENTEM_DATA", str(tmp_path))
    path = tmp_path / names["TINY"].path
    path.parent.mkdir()
    path.write_bytes(content)
    found = names["tiny"]()
    np.testing.assert_array_equal(found.x, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(found.y, [0, 1])
    path.write_bytes(content.replace(b"4", b"5"))
    with pytest.raises(ValueError, match="must have the SHA-256"):
        names["tiny"]()


# the recipes read backwards: what is removed is missed by nothing but the lines that name it

REMOVED = {
    "src/momentem/kernels/_ccadl.py": None,
    "src/momentem/kernels/__init__.py": ["from momentem.kernels._ccadl import ccadl", '"ccadl",'],
    "src/momentem/em/m_steps/_score.py": None,
    "src/momentem/em/m_steps/__init__.py": [
        "from momentem.em.m_steps._score import score",
        '"score",',
    ],
    "src/momentem/masses/low_rank.py": None,
    "src/momentem/masses/__init__.py": [
        "from momentem.masses.low_rank import LowRankMass, low_rank_mass",
        '"LowRankMass",',
        '"low_rank_mass",',
    ],
    "src/momentem/__init__.py": [
        "    LowRankMass,\n",
        "    low_rank_mass,\n",
        '"LowRankMass",',
        '"low_rank_mass",',
    ],
    "src/momentem/run/warm_start.py": [", LowRankMass", "LowRankMass, "],
    "tests/test_conformance.py": [
        '    "ccadl": lambda target: mt.kernels.ccadl(target, 3),\n',
        '    "ccadl-em": learning(mt.kernels.ccadl),\n',
        '    "score": mt.m_steps.score(),\n',
        # of the low-rank mass, the row and the samplers that are made with it
        re.compile(r'    "low rank": mt.low_rank_mass\(.*?\n    \),\n', re.DOTALL),
        re.compile(r'    "tuned_hmc_em low rank": .*\n'),
        re.compile(r'    "hmc-em low rank": .*?\n    \),\n', re.DOTALL),
    ],
    # not in the recipe: where the library itself chose this mass
    "src/momentem/samplers.py": [
        ", LowRankMass",
        re.compile(r"    parts = np\.ones.*?\n    return LowRankMass.*?\n", re.DOTALL),
    ],
    "src/momentem/testing.py": ["    LowRankMass,\n", re.compile(r"        LowRankMass\(.*\n")],
    "src/momentem/bridges/blackjax.py": [
        re.compile(r"    if isinstance\(mass, LowRankMass\):.*?\n\n.*?\n", re.DOTALL),
        ", LowRankMass",
    ],
}

STILL_WORKS = """
import importlib, pkgutil
import conftest, test_conformance
import jax.numpy as jnp, momentem as mt

assert not hasattr(mt.kernels, "ccadl") and not hasattr(mt.m_steps, "score")
assert not hasattr(mt, "LowRankMass")
for module in pkgutil.walk_packages(mt.__path__, "momentem."):
    importlib.import_module(module.name)
target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
trace = mt.sample(target, num_draws=20, num_warmup=40, progress=False)
print(trace["posterior"].sizes["draw"], len(test_conformance.SAMPLERS))
"""


def test_what_is_removed_is_not_missed(tmp_path):
    root = copy_repository(tmp_path)
    for path, lines in REMOVED.items():
        if lines is None:
            (root / path).unlink()
            continue
        text = (root / path).read_text()
        for line in lines:
            pattern = line if isinstance(line, re.Pattern) else re.escape(line)
            text, times = re.subn(pattern, "", text)
            assert times, f"{path} has no {line}"
        (root / path).write_text(text)
    printed = run_alone(STILL_WORKS, PYTHONPATH=f"{root / 'src'}:{root / 'tests'}", **QUICK)
    assert printed.startswith("20 ")
