"""To make something learnable one touches its kernel and its M-step, and all that is learnt
survives the way through a trace, to the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import momentem as mt
from momentem.testing import check_kernel, check_sampler, minibatch_target, skewed_target

pytestmark = pytest.mark.usefixtures("quick_compilation")

RUN = {"num_chains": 3, "progress": False}


def masses(dim=3):
    ones = jnp.ones(dim)
    return {
        "diagonal": mt.diagonal_mass(ones),
        "dense": mt.dense_mass(jnp.diag(ones)),
        "low rank": mt.low_rank_mass(ones, jnp.eye(dim)[:, :1], ones[:1]),
    }


def recorded(sampler):
    """The same sampler, and a list that will hold what it had learnt when it was frozen."""
    found = []

    def freeze(inner, state):
        frozen, state = inner(state)
        found.append(frozen.learnt(state))
        return frozen, state

    return sampler._replace(freeze=Partial(freeze, sampler.freeze)), found


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, array in found.items():
        wanted = np.asarray(expected[name])
        assert (np.shape(array), np.asarray(array).dtype) == (wanted.shape, wanted.dtype), name
        assert np.asarray(array).tobytes() == wanted.tobytes(), name


def draws(target, kernel, learnt):
    """Those of a run with what was learnt held fixed."""
    positions = {name: jnp.zeros((3, *x.shape)) for name, x in like(target).items()}
    positions = positions if isinstance(initial(target), dict) else positions["x"]
    sampler = mt.fixed(kernel, learnt)
    trace = mt.sample(
        target, sampler, num_draws=4, num_warmup=0, seed=7, positions=positions, **RUN
    )
    return {name: array.values for name, array in trace["posterior"].data_vars.items()}


def initial(target):
    return target.constrain(target.initial)


def like(target):
    found = initial(target)
    return found if isinstance(found, dict) else {"x": found}


def survive(target, sampler, kernel, names, out=None):
    """Run, take what was learnt through the trace, and compare with what was frozen."""
    sampler, frozen = recorded(sampler)
    trace = mt.sample(target, sampler, num_draws=4, num_warmup=60, out=out, **RUN)
    (direct,) = frozen
    returned = mt.learnt_from(trace)
    assert type(returned.mass) is type(direct.mass)
    assert_same_bits(returned.arrays(), direct.arrays())
    assert set(returned.others) == names
    assert_same_bits(draws(target, kernel, returned), draws(target, kernel, direct))
    return direct, trace


SAMPLERS = {
    "sghmc": ({"noise"}, mt.kernels.sghmc),
    "sgnht": ({"noise", "thermostat_mass"}, mt.kernels.sgnht),
    "sg_nphmc": ({"noise", "thermostat_mass"}, mt.kernels.sg_nphmc),
    "anchored": ({"noise", "anchor"}, mt.kernels.sghmc),
}


def stochastic(name, mass_name):
    """A target, its sampler and the kernel by which it moves."""
    target, mass = minibatch_target(float), masses()[mass_name]
    if name == "anchored":
        target = mt.control_variate(target)
    kernel = SAMPLERS[name][1](target, 3)
    options = {"mass": mass, "e_step": mt.e_steps.constant(30)}
    if mass_name == "low rank":
        options |= {"m_step": mt.m_steps.fisher_low_rank(8), "step_size": 0.01}
    elif name == "sg_nphmc":
        options |= {"m_step": mt.m_steps.momentum(), "step_size": 0.01}
    if name == "sg_nphmc":
        options["m_step"] = mt.m_steps.with_thermostat(options["m_step"])
    sampler = mt.self_tuned(kernel, **options)
    return target, sampler, mt.kernels.following(kernel) if name == "anchored" else kernel


@pytest.mark.parametrize("mass", masses())
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.validate
def test_what_a_stochastic_kernel_leaves_open_survives(name, mass):
    target, sampler, kernel = stochastic(name, mass)
    learnt, _ = survive(target, sampler, kernel, SAMPLERS[name][0])
    start = kernel.complete(mt.Learnt(masses()[mass], jnp.array(1e-8))).arrays()
    learns = {"anchored": "anchor.position", "sg_nphmc": "thermostat_mass"}.get(name)
    changed = {n for n, x in learnt.arrays().items() if not np.array_equal(x, start[n])}
    assert set(masses()[mass]._fields[:1]) <= changed
    assert learns is None or learns in changed


@pytest.mark.parametrize(
    "mass",
    ["dense", *(pytest.param(m, marks=pytest.mark.validate) for m in ("diagonal", "low rank"))],
)
def test_what_the_default_learns_survives(mass):
    target = skewed_target(float)
    sampler, kernel = mt.tuned_hmc_em(target, masses()[mass]), mt.kernels.rotating_hmc(target)
    learnt, _ = survive(target, sampler, kernel, {"centre", "path"})
    assert not np.array_equal(learnt.centre, np.zeros(3))


# something new to learn: a kernel that names and reads it, an M-step that sets it, nothing else


def tempered(target):
    """HMC with two numbers of its own: a temperature of the momenta, and a box that it reports."""
    inner = mt.kernels.hmc(target, num_steps=2)
    return mt.Kernel(inner.init, Partial(_step, inner), complete=Partial(_complete))


def _complete(learnt):
    one, diagonal = jnp.ones_like(learnt.step_size), learnt.mass.inverse_mass_diagonal()
    return learnt.with_defaults(temperature=one, box={"low": -diagonal, "size": one})


def _step(inner, key, state, learnt):
    step_size = learnt.step_size / jnp.sqrt(learnt.temperature)
    state, info = inner.step(key, state, mt.Learnt(learnt.mass, step_size))
    is_inside = jnp.all(info.position > learnt.box["low"]).astype(step_size.dtype)
    return state, info._replace(stats=info.stats | {"inside": is_inside * learnt.box["size"]})


def with_temperature(m_step):
    def gather(info):
        return info.position, info.stats["acceptance_rate"], info.stats["inside"]

    def is_usable(position, acceptance, inside):
        return jnp.isfinite(position).all() & jnp.isfinite(acceptance + inside)

    def average(learnt, rate, position, acceptance, inside):
        box = {"low": position - 1, "size": 0.5 + inside}
        return learnt.replace(temperature=1 / (0.1 + acceptance), box=box)

    return mt.m_steps.add_means(m_step, gather, is_usable, average)


M_STEP = with_temperature(mt.m_steps.fisher())


def learning(target):
    start = mt.Learnt(
        mt.diagonal_mass(jnp.ones_like(target.initial)), jnp.array(0.3, target.initial.dtype)
    )
    return mt.monte_carlo_em(tempered(target), start, M_STEP, mt.e_steps.constant(9))


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.one_now
def test_something_new_is_learnt_and_survives(is_stored, tmp_path):
    target = skewed_target(float)
    out = tmp_path / "run" if is_stored else None
    names = {"temperature", "box"}
    learnt, trace = survive(target, learning(target), tempered(target), names, out)
    assert learnt.temperature != 1
    assert sorted(learnt.box) == ["low", "size"]
    assert trace["em"]["temperature"][-1] == learnt.temperature  # numbers are traced as they change
    if is_stored:
        assert_same_bits(mt.learnt_from(mt.load(out)).arrays(), learnt.arrays())


@pytest.mark.validate
def test_the_frozen_sampler_moves_as_the_fixed_one():
    target, key = skewed_target(float), jax.random.key(3)
    sampler = learning(target)
    state = sampler.init(key, jnp.zeros((3, 3)))
    step = jax.jit(lambda sampler, key, state: sampler.step(key, state))
    for one in jax.random.split(key, 4):
        state, _ = step(sampler, one, state)
    frozen, frozen_state = sampler.freeze(state)
    returned = mt.Learnt.from_arrays(
        sampler.learnt(state).mass,
        {n: x for n, x in sampler.learnt(state).arrays().items() if n != "inverse_mass"},
    )
    again = mt.fixed(tempered(target), returned)
    found, expected = (step(s, key, frozen_state)[1].chains.position for s in (again, frozen))
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.validate
def test_the_new_kernel_and_its_sampler_conform():
    check_kernel(tempered)
    check_sampler(learning)


def test_a_name_that_the_mass_has_too_is_refused_before_the_run():
    target = skewed_target(float)
    kernel = mt.kernels.hmc(target, 2)._replace(
        complete=Partial(lambda learnt: learnt.with_defaults(inverse_mass=jnp.ones(())))
    )
    start = mt.Learnt(mt.diagonal_mass(jnp.ones(3)), 0.3)
    with pytest.raises(ValueError, match="two things that are learnt have the name"):
        mt.monte_carlo_em(kernel, start, mt.m_steps.fisher(), mt.e_steps.constant(9))


@pytest.mark.parametrize("box", [{"low.er": 1.0}, {0: 1.0}, (1.0, 2.0)])
def test_names_that_a_trace_could_not_hold_are_refused(box):
    learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(3)), 0.3)
    with pytest.raises(TypeError, match="use a dict whose keys are strings without dots"):
        learnt.with_defaults(box=box)
