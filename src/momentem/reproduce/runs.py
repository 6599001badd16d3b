"""Many runs of one sampler in one program, for several seeds with their data or for several
settings.

Samplers are pytrees, so samplers with different data or settings are mapped over like any batch.
"""

from functools import partial
from typing import Any, NamedTuple

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
from arviz_base import dict_to_dataset

from momentem.reproduce.problems import Problem
from momentem.types import Sampler
from momentem.xla import keys

__all__ = ["Run", "extremes", "judge", "run"]


class Run(NamedTuple):
    """One chain per problem, with all its iterations, warm-up included."""

    draws: np.ndarray  # (problem, iteration, parameter), constrained
    num_divergences: np.ndarray  # (problem,), after warm-up
    learning: dict[str, np.ndarray]  # (iteration, ...), of the first problem


def run(
    problems: list[Problem], samplers: list[Sampler], num_warmup: int, num_draws: int, seed: int
) -> Run:
    """Run one chain per problem, each with its own sampler.

    Args:
        problems: one for each sampler.
        samplers: of the same structure, with different numbers.
        num_warmup: iterations whose divergences are not counted.
        num_draws: iterations after those.
        seed: of all chains.
    """
    leaves, axes = _stack(samplers)
    chain_keys = jax.random.split(keys.key(seed), len(problems))
    starts = jnp.stack([jnp.asarray(problem.start) for problem in problems])
    iterations = jnp.arange(num_warmup + num_draws)
    structure = jax.tree.structure(samplers[0])
    positions, diverging, learning = _run(leaves, chain_keys, starts, iterations, axes, structure)
    draws = [_parameters(*pair) for pair in zip(problems, positions, strict=True)]
    num_divergences = np.asarray(diverging)[:, num_warmup:].sum(axis=1)
    first = {name: np.asarray(leaf[0]) for name, leaf in learning.items()}
    return Run(np.stack(draws), num_divergences, first)


@partial(jax.jit, static_argnames=("axes", "structure"))
def _run(leaves: Any, keys: Any, starts: Any, iterations: Any, axes: tuple, structure: Any) -> Any:
    def one(leaves: Any, key: Any, start: Any) -> tuple[Any, Any, Any]:
        sampler = structure.unflatten(leaves)
        init_key, run_key = jax.random.split(key)

        def step(state: Any, i: Any) -> tuple[Any, tuple]:
            state, info = sampler.step(jax.random.fold_in(run_key, i), state)
            chain = jax.tree.map(lambda leaf: leaf[0], info.chains)
            return state, (chain.position, chain.stats["diverging"], info.learning)

        return jax.lax.scan(step, sampler.init(init_key, start[None]), iterations)[1]

    return jax.vmap(one, in_axes=(axes, 0, 0))(leaves, keys, starts)


def extremes(covariance: np.ndarray) -> tuple[float, float]:
    """Return the smallest and the largest eigenvalue, or NaN if there is a NaN."""
    if not np.isfinite(covariance).all():
        return np.nan, np.nan
    eigenvalues = np.linalg.eigvalsh(covariance)
    return float(eigenvalues[0]), float(eigenvalues[-1])


def _stack(samplers: list[Sampler]) -> tuple[tuple, tuple]:
    """Return the leaves of all samplers, and their axes to map over: 0 for leaves that differ, and
    None for others."""

    def is_shared(values: tuple) -> bool:
        return all(np.array_equal(np.asarray(value), np.asarray(values[0])) for value in values)

    columns = list(zip(*[jax.tree.leaves(sampler) for sampler in samplers], strict=True))
    axes = tuple(None if is_shared(column) else 0 for column in columns)
    stacked = [
        column[0] if axis is None else jnp.stack([jnp.asarray(value) for value in column])
        for column, axis in zip(columns, axes, strict=True)
    ]
    return tuple(stacked), axes


def _parameters(problem: Problem, positions: Any) -> np.ndarray:
    """Return positions, (draw, D), as constrained parameters, (draw, parameter)."""
    leaves = jax.tree.leaves(jax.vmap(problem.target.constrain)(positions))
    return np.concatenate([np.asarray(leaf).reshape(len(positions), -1) for leaf in leaves], axis=1)


def judge(problem: Problem, draws: np.ndarray) -> dict[str, Any]:
    """Judge the draws of one run.

        mean         largest error of the posterior mean, in posterior standard deviations
        covariance   whitened: the identity is right
        ess          smallest over parameters, per draw
        rmse0, ...   root mean square distance from the generating values, the paper's measure

    Args:
        problem: a problem with a known posterior.
        draws: (draw, parameter), after warm-up.
    """
    dim = len(problem.mean)
    found: dict[str, Any] = {"mean": np.nan, "covariance": np.full((dim, dim), np.nan), "ess": 0.0}
    if np.isfinite(draws).all():
        root = np.linalg.cholesky(problem.covariance)
        whitened = np.linalg.solve(root, (draws - problem.mean).T).T
        columns = dict_to_dataset({f"x{i}": column[None] for i, column in enumerate(draws.T)})
        ess = min(float(value) for value in arviz_stats.ess(columns, method="mean").values())
        found["mean"] = float(np.abs(whitened.mean(axis=0)).max())
        found["covariance"] = np.cov(whitened.T)
        found["ess"] = ess / len(draws)
    if problem.generating is not None:
        errors = np.sqrt(np.mean((draws - problem.generating) ** 2, axis=0))
        found |= {f"rmse{i}": float(error) for i, error in enumerate(errors)}
    return found
