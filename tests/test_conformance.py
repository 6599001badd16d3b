"""Every kernel and every sampler is one row of a table."""

import jax.numpy as jnp
import pytest

import momentem as mt
from momentem.testing import check_kernel, check_sampler

KERNELS = {
    "hmc": lambda target: mt.kernels.hmc(target, num_steps=3),
    "hmc with jitter": lambda target: mt.kernels.hmc(target, num_steps=5, jitter=0.5),
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
        mt.hmc_em(target, 0.1, 3, e_step=mt.e_steps.growing(9))
    ),
    "hmc-em low rank": lambda target: mt.hmc_em(
        target, 0.1, 3, low_rank(target), mt.m_steps.fisher_low_rank(8), mt.e_steps.constant(9)
    ),
    "hmc-em printed growth": lambda target: mt.hmc_em(
        target, 0.1, 3, e_step=mt.e_steps.growing_printed(9)
    ),
}
for name, m_step in M_STEPS.items():
    SAMPLERS[f"hmc-em {name} dense"] = lambda target, m_step=m_step: mt.hmc_em(
        target, 0.1, 3, m_step=m_step, e_step=mt.e_steps.constant(6)
    )
    SAMPLERS[f"hmc-em {name} diagonal"] = lambda target, m_step=m_step: mt.hmc_em(
        target, 0.1, 3, diagonal(target), m_step, mt.e_steps.constant(6)
    )


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name):
    check_kernel(KERNELS[name])


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler(name):
    check_sampler(SAMPLERS[name])


def test_check_sampler_refuses_a_sampler_that_forgets_its_dtype():
    def make(target):
        sampler = mt.hmc(target, step_size=0.1, num_steps=3)

        def step(key, state):
            state, info = sampler.step(key, state)
            wide = info.chains._replace(position=info.chains.position.astype(float))
            return state, info._replace(chains=wide)

        return sampler._replace(step=step)

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
            import jax

            jax.random.normal(key)
            return kernel.step(key, state, learnt)

        return kernel._replace(step=mt.types.Partial(step))

    with pytest.raises(Exception, match="key"):
        check_kernel(make)
