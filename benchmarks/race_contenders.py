"""The contenders of the race, each with its own defaults, and what a run gives back.

A contender is prepared for a posterior once, and then runs from a seed and starts (chain, D). All
are given the same JAX log density, except nutpie through PyMC, which is given the same formula.
Those written in JAX move their chains together, and everything from the starts to the last draw is
one compiled program: NumPyro's `MCMC.run` by itself compiles again in every run. nutpie calls the
compiled log density from outside.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import nutpie
import optax
import pymc as pm
import pytensor.tensor as pt
from blackjax.adaptation.base import get_filter_adapt_info_fn
from numpyro.infer import MCMC, NUTS
from nutpie.compiled_pyfunc import from_pyfunc

import momentem as mt
from race_posteriors import Posterior

__all__ = ["CONTENDERS", "JAX_NUTS", "OURS", "REFERENCE", "SPREAD", "Run", "Runner", "target_of"]

SPREAD = 2.0  # starts are uniform in (-2, 2), as Stan's
NUM_WARMUP, NUM_DRAWS = 1000, 1000


class Run(NamedTuple):
    """Draws (chain, draw, D), gradients in warm-up and in draws, summed over chains, and the
    seconds of sampling alone, if the call does more."""

    draws: np.ndarray
    warmup_gradients: int
    gradients: int
    sampling: float = float("inf")


Runner = Callable[[int, np.ndarray], Run]


def target_of(posterior: Posterior) -> Any:
    return mt.density(posterior.logdensity, initial=jnp.zeros(posterior.dim))


def momentem_default(posterior: Posterior, num_chains: int) -> Runner:
    target = target_of(posterior)

    def run(seed: int, starts: np.ndarray) -> Run:
        del starts  # it draws the same ones itself, from its seed
        trace = mt.sample(target, num_chains=num_chains, seed=seed, spread=SPREAD)
        warmup, draws = (
            int(trace[group].to_dataset()["n_steps"].sum())
            for group in ("warmup_sample_stats", "sample_stats")
        )
        warmup += int(trace["em"].to_dataset()["way_in_gradients"][0].sum())
        positions = trace["posterior"].to_dataset()["position"].values
        return Run(positions, warmup, draws, trace.attrs["sampling_time"])

    return run


def compiled(program: Callable) -> Runner:
    """Return a runner of a JAX program from key and starts to positions and numbers of steps, each
    (chain, iteration, …), warm-up first."""
    program = jax.jit(program)

    def run(seed: int, starts: np.ndarray) -> Run:
        positions, steps = jax.device_get(program(jax.random.PRNGKey(seed), jnp.asarray(starts)))
        before, after = steps[:, :NUM_WARMUP].sum(), steps[:, NUM_WARMUP:].sum()
        return Run(positions[:, NUM_WARMUP:], int(before), int(after))

    return run


def numpyro_nuts(posterior: Posterior, num_chains: int, dense_mass: bool) -> Runner:
    def potential(x):
        return -posterior.logdensity(x)

    def program(key, starts):
        mcmc = MCMC(
            NUTS(potential_fn=potential, dense_mass=dense_mass),
            num_warmup=NUM_WARMUP,
            num_samples=NUM_DRAWS,
            num_chains=num_chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        length = NUM_WARMUP + NUM_DRAWS
        mcmc._set_collection_params(0, length, length)  # steps of warm-up are to be counted too
        mcmc.run(key, init_params=starts, extra_fields=("num_steps",))
        fields: Any = mcmc.get_extra_fields(group_by_chain=True)
        return mcmc.get_samples(group_by_chain=True), fields["num_steps"]

    return compiled(program)


def blackjax_nuts(posterior: Posterior, num_chains: int) -> Runner:
    seen = get_filter_adapt_info_fn({"position"}, {"num_integration_steps"})
    warmup: Any = blackjax.window_adaptation(
        blackjax.nuts, posterior.logdensity, adaptation_info_fn=seen
    )

    def one_chain(key, start):
        warmup_key, draws_key = jax.random.split(key)
        (state, parameters), before = warmup.run(warmup_key, start, num_steps=NUM_WARMUP)
        algorithm: Any = blackjax.nuts(posterior.logdensity, **parameters)

        def step(state, key):
            state, info = algorithm.step(key, state)
            return state, (state.position, info.num_integration_steps)

        after = jax.lax.scan(step, state, jax.random.split(draws_key, NUM_DRAWS))[1]
        before = before.state.position, before.info.num_integration_steps
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), before, after)

    def program(key, starts):
        return jax.vmap(one_chain)(jax.random.split(key, num_chains), starts)

    return compiled(program)


def blackjax_chees(
    posterior: Posterior, num_chains: int, mass_matrix_estimation: str | None
) -> Runner:
    """ChEES-HMC, with Adam at the rate of Hoffman, Radul and Sountsov (2021), section 3.3."""
    seen = get_filter_adapt_info_fn(set(), {"num_integration_steps"})
    warmup: Any = blackjax.chees_adaptation(
        posterior.logdensity,
        num_chains,
        mass_matrix_estimation=mass_matrix_estimation,
        adaptation_info_fn=seen,
    )

    def program(key, starts):
        warmup_key, draws_key = jax.random.split(key)
        optimiser = optax.adam(0.025, b1=0.0, b2=0.95)
        (states, parameters), before = warmup.run(
            warmup_key, starts, 0.1, optimiser, NUM_WARMUP, max_sampling_steps=NUM_DRAWS
        )
        algorithm: Any = blackjax.dhmc(posterior.logdensity, **parameters)

        def step(states, key):
            states, info = jax.vmap(algorithm.step)(jax.random.split(key, num_chains), states)
            return states, (states.position, info.num_integration_steps)

        keys = jax.random.split(draws_key, NUM_DRAWS)
        positions, after = jax.lax.scan(step, states, keys)[1]
        nothing = jnp.zeros((NUM_WARMUP, *positions.shape[1:]), positions.dtype)
        steps = jnp.concatenate([before.info.num_integration_steps, after])
        return jnp.swapaxes(jnp.concatenate([nothing, positions]), 0, 1), steps.T

    return compiled(program)


def nutpie_nuts(posterior: Posterior, num_chains: int, is_low_rank: bool) -> Runner:
    compute = jax.jit(jax.value_and_grad(posterior.logdensity))
    places: list[np.ndarray] = []

    def logdensity():
        def evaluate(x, **data):
            del data
            value, gradient = compute(x)
            return float(value), np.asarray(gradient)

        return evaluate

    def start(seed):
        del seed
        places.append(places.pop(0))  # in turn: a chain may ask more than once
        return places[-1]

    model = from_pyfunc(
        posterior.dim,
        logdensity,
        lambda *seeds: lambda x, **data: {"x": np.asarray(x)},
        [np.dtype(float)],
        [(posterior.dim,)],
        ["x"],
        make_initial_point_fn=start,
    )

    run = nutpie_runner(model, num_chains, is_low_rank)

    def run_from(seed: int, starts: np.ndarray) -> Run:
        places[:] = list(np.asarray(starts))
        return run(seed, starts)

    return run_from


def nutpie_runner(model: Any, num_chains: int, is_low_rank: bool) -> Runner:
    def run(seed: int, starts: np.ndarray) -> Run:
        del starts
        trace: Any = nutpie.sample(
            model,
            draws=NUM_DRAWS,
            chains=num_chains,
            seed=seed,
            progress_bar=False,
            low_rank_modified_mass_matrix=is_low_rank,
        )
        groups = trace.warmup_sample_stats, trace.sample_stats
        before, after = (int(group["n_steps"].sum()) for group in groups)
        return Run(np.asarray(trace.posterior["x"]), before, after)

    return run


def nutpie_pymc(posterior: Posterior, num_chains: int) -> Runner:
    """nutpie on a PyMC model. It draws its own starts, by its own rule."""
    with pm.Model() as model:
        x = pm.Flat("x", shape=posterior.dim)
        pm.Potential("logdensity", posterior.logdensity(x, pt))
    return nutpie_runner(nutpie.compile_pymc_model(model), num_chains, False)


OURS, REFERENCE = "momentem", "NumPyro NUTS, dense"
CONTENDERS: dict[str, Callable[[Posterior, int], Runner]] = {
    OURS: momentem_default,
    "NumPyro NUTS": partial(numpyro_nuts, dense_mass=False),
    "NumPyro NUTS, dense": partial(numpyro_nuts, dense_mass=True),
    "BlackJAX NUTS": blackjax_nuts,
    "BlackJAX ChEES": partial(blackjax_chees, mass_matrix_estimation=None),
    "BlackJAX ChEES, diagonal": partial(blackjax_chees, mass_matrix_estimation="diagonal"),
    "nutpie": partial(nutpie_nuts, is_low_rank=False),
    "nutpie, low rank": partial(nutpie_nuts, is_low_rank=True),
    "nutpie, PyMC": nutpie_pymc,
}
JAX_NUTS = [name for name in CONTENDERS if "NumPyro" in name or "BlackJAX NUTS" in name]
