"""Every kernel, every mass and every sampler is one row of a table."""

import jax
import jax.numpy as jnp
import pytest

import momentem as mt
from momentem.testing import check_kernel, check_mass, check_sampler, minibatch_target

pytestmark = pytest.mark.usefixtures("quick_compilation")


def mostly_later(names, *now):
    """Parameters, all but those of `now` in `make validate` only."""
    return [pytest.param(name, marks=() if name in now else pytest.mark.validate) for name in names]


KERNELS = {
    "hmc": lambda target: mt.kernels.hmc(target, num_steps=3),
    "hmc with jitter": lambda target: mt.kernels.hmc(target, num_steps=5, jitter=0.5),
    "nphmc": lambda target: mt.kernels.nphmc(target, num_steps=3),
    "rotating_hmc": lambda target: mt.kernels.rotating_hmc(target),
}

STOCHASTIC_KERNELS = {
    "hmc on all data": lambda target: mt.kernels.hmc(target, num_steps=3),
    "sghmc": lambda target: mt.kernels.sghmc(target, 3),
    "sghmc refreshed": lambda target: mt.kernels.refreshed(mt.kernels.sghmc(target, 3)),
    "sgnht": lambda target: mt.kernels.sgnht(target, 3),
    "matrix_sgnht": lambda target: mt.kernels.matrix_sgnht(target, 3),
    "ccadl": lambda target: mt.kernels.ccadl(target, 3),
    "sg_nphmc": lambda target: mt.kernels.sg_nphmc(target, 3),
    "sghmc_printed": lambda target: mt.kernels.sghmc_printed(target, 3, 1.0, 0.1),
    "sgnht_printed": lambda target: mt.kernels.sgnht_printed(target, 3),
    "sg_nphmc_printed": lambda target: mt.kernels.sg_nphmc_printed(target, 3, 0.01, 0.1),
}

MASSES = {
    "diagonal": mt.diagonal_mass(jnp.array([1.0, 4.0, 0.5])),
    "dense": mt.dense_mass(jnp.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.3]])),
    "low rank": mt.low_rank_mass(
        jnp.array([1.0, 2.0, 0.5]), jnp.array([[0.6], [0.8], [0.0]]), jnp.array([3.0])
    ),
}


def diagonal(target):
    return mt.diagonal_mass(jnp.ones_like(target.initial))


def low_rank(target):
    vectors = jnp.eye(len(target.initial), dtype=target.initial.dtype)[:, :1]
    return mt.low_rank_mass(
        jnp.ones_like(target.initial), vectors, jnp.ones_like(target.initial[:1])
    )


M_STEPS = {
    "momentum": mt.m_steps.momentum(),
    "momentum_printed": mt.m_steps.momentum_printed(),
    "score": mt.m_steps.score(),
    "draws": mt.m_steps.draws(),
    "fisher": mt.m_steps.fisher(),
}

SAMPLERS = {
    "hmc": lambda target: mt.hmc(target, step_size=0.1, num_steps=3),
    "hmc-em": lambda target: mt.hmc_em(target, 0.1, 3, e_step=mt.e_steps.growing(9)),
    "hmc-em forever": lambda target: mt.forever(
        mt.hmc_em(target, 0.1, 3, e_step=mt.e_steps.constant(9))
    ),
    "tuned_hmc_em": lambda target: mt.tuned_hmc_em(target),
    "tuned_hmc_em low rank": lambda target: mt.tuned_hmc_em(target, low_rank(target)),
    "hmc-em low rank": lambda target: mt.hmc_em(
        target, 0.1, 3, low_rank(target), mt.m_steps.fisher_low_rank(8), mt.e_steps.constant(9)
    ),
}


def round_metric(x):
    return jnp.diag(1 + x**2)


def curved(target):
    return mt.metrics.metric(round_metric)


SAMPLERS |= {
    "rhmc": lambda target: mt.rhmc(target, curved(target), 0.1, 3),
    "rhmc diagonal": lambda target: mt.rhmc(
        target, mt.metrics.diagonal(curved(target)), 0.1, 3, mt.fixed_points.iterations(6)
    ),
}
for name, m_step in M_STEPS.items():
    SAMPLERS[f"hmc-em {name} dense"] = lambda target, m_step=m_step: mt.hmc_em(
        target, 0.1, 3, m_step=m_step, e_step=mt.e_steps.constant(6)
    )
    SAMPLERS[f"hmc-em {name} diagonal"] = lambda target, m_step=m_step: mt.hmc_em(
        target, 0.1, 3, diagonal(target), m_step, mt.e_steps.constant(6)
    )


def learning(kernel):
    """A kernel with the noise M-step after every 6 draws."""

    def make(target):
        learnt = mt.Learnt(dense(target), jnp.array(0.01, target.initial.dtype))
        made = kernel(target, 3)
        m_step = mt.m_steps.noise(made)
        return mt.monte_carlo_em(made, learnt, m_step, mt.e_steps.constant(6))

    return make


def dense(target):
    return mt.dense_mass(jnp.diag(jnp.ones_like(target.initial)))


SIX = mt.e_steps.constant(6)
STOCHASTIC_SAMPLERS = {
    "sghmc": lambda target: mt.sghmc(target, 0.01, 3),
    "sgnht": lambda target: mt.sgnht(target, 0.01, 3),
    "nphmc": lambda target: mt.nphmc(target, 0.01, 3),
    "sg_nphmc": lambda target: mt.sg_nphmc(target, 0.01, 3),
    "sgr_nphmc": lambda target: mt.sgr_nphmc(target, curved(target), 0.01, 3),
    "sghmc-em": lambda target: mt.sghmc_em(target, 3, e_step=mt.e_steps.geometric(6)),
    "sgnht-em": lambda target: mt.sgnht_em(target, 3, e_step=SIX),
    "sg_nphmc-em": lambda target: mt.sg_nphmc_em(target, 3, e_step=SIX),
    "sghmc-em diagonal": lambda target: mt.sghmc_em(target, 3, e_step=SIX, mass=diagonal(target)),
    "sgnht-em momentum": lambda target: mt.sgnht_em(
        target, 3, m_step=mt.m_steps.momentum(), e_step=SIX, step_size=0.01
    ),
    "sgnht-em thermostatted growth": lambda target: mt.sgnht_em(
        target, 3, e_step=mt.e_steps.growing(6, test=mt.e_steps.thermostatted())
    ),
    "sg_nphmc-em both masses": lambda target: mt.sg_nphmc_em(
        target,
        3,
        m_step=mt.m_steps.with_thermostat(mt.m_steps.momentum()),
        e_step=SIX,
        step_size=0.01,
    ),
    "sghmc-em anchored": lambda target: mt.sghmc_em(mt.control_variate(target), 3, e_step=SIX),
    "ccadl-em": learning(mt.kernels.ccadl),
    "matrix_sgnht-em": learning(mt.kernels.matrix_sgnht),
}


@pytest.mark.parametrize("name", mostly_later(KERNELS, "hmc", "rotating_hmc"))
def test_kernel(name):
    check_kernel(KERNELS[name])


@pytest.mark.parametrize("name", MASSES)
def test_mass(name):
    check_mass(MASSES[name])


@pytest.mark.parametrize("name", mostly_later(STOCHASTIC_KERNELS, "sghmc", "sgnht"))
def test_stochastic_kernel(name):
    check_kernel(STOCHASTIC_KERNELS[name], step_size=0.01, target=minibatch_target, learnt=noisy)


def noisy(learnt):
    """The same with a gradient noise, where the kernel has one to leave open."""
    others = {name: 0.5 * jnp.ones_like(value) for name, value in learnt.others.items()}
    return learnt.replace(**others)


@pytest.mark.parametrize("name", mostly_later(STOCHASTIC_SAMPLERS, "sghmc-em"))
def test_stochastic_sampler(name):
    check_sampler(STOCHASTIC_SAMPLERS[name], target=minibatch_target)


@pytest.mark.parametrize("name", mostly_later(SAMPLERS, "hmc", "tuned_hmc_em"))
def test_sampler(name):
    # the first E-step of the sampler that tunes itself has ten iterations
    num_steps = 11 if name.startswith("tuned") else 8
    check_sampler(SAMPLERS[name], num_steps=num_steps, learns_on=name == "hmc-em forever")


def test_check_sampler_refuses_one_that_learns_on_unasked():
    with pytest.raises(AssertionError, match="what is learnt, after freezing"):
        check_sampler(SAMPLERS["hmc-em forever"])


def test_check_sampler_refuses_a_sampler_that_forgets_its_dtype():
    def make(target):
        sampler = mt.hmc(target, step_size=0.1, num_steps=3)

        def step(key, state):
            state, info = sampler.step(key, state)
            wide = info.chains._replace(position=info.chains.position.astype(float))
            return state, info._replace(chains=wide)

        return sampler._replace(step=mt.types.Partial(step))

    with pytest.raises(AssertionError, match=r"info\.position must keep dtype"):
        check_sampler(make)


def test_check_sampler_refuses_a_sampler_that_compiles_again():
    def make(target):
        sampler = mt.hmc(target, step_size=0.1, num_steps=3)
        return sampler._replace(step=mt.types.Partial(lambda key, state: sampler.step(key, state)))

    with pytest.raises(AssertionError, match="must not compile again"):
        check_sampler(make)


def test_check_kernel_refuses_a_reused_key():
    def make(target):
        kernel = mt.kernels.hmc(target, num_steps=3)

        def step(key, state, learnt):
            jax.random.normal(key)
            return kernel.step(key, state, learnt)

        return kernel._replace(step=mt.types.Partial(step))

    with pytest.raises(Exception, match="key"):
        check_kernel(make)
