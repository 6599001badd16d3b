"""The posteriors of the paper's sections 4.1 and 4.2, with all that the ten samplers need."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from numpyro.distributions import constraints

from momentem.masses import dense_mass
from momentem.reproduce import datasets
from momentem.riemannian import metrics
from momentem.riemannian.metrics import Metric
from momentem.samplers import hmc_em
from momentem.targets._dataset import dataset
from momentem.targets._density import Target
from momentem.targets._minibatch import StochasticTarget
from momentem.targets.control_variates import mode
from momentem.xla import keys

__all__ = ["Problem", "classification", "gaussian", "synthetic"]

BATCH = 100


class Problem(NamedTuple):
    """One posterior on one data set."""

    target: Target
    noisy: StochasticTarget
    metric: Metric
    generating: np.ndarray | None  # parameters that synthetic data were made with
    mean: np.ndarray  # of the posterior, over constrained parameters
    covariance: np.ndarray
    start: np.ndarray  # unconstrained


def _log_prior(p: Any) -> Any:
    """Return the log prior: Wishart(1, 1), i.e. Gamma(1/2, 1/2), for tau, and flat for mu."""
    return -0.5 * jnp.log(p["tau"]) - 0.5 * p["tau"]


def _log_likelihood(p: Any, x: Any) -> Any:
    return 0.5 * jnp.log(p["tau"]) - 0.5 * p["tau"] * (x - p["mu"]) ** 2


def _normal_metric(num: Any, theta: Any) -> Any:
    tau = jnp.exp(theta[1])
    return jnp.stack([num * tau, num / 2 + tau / 2])


def gaussian(seed: int, num: int = 5000) -> Problem:
    """Return p(mu, tau | x) for `num` points from N(0, 1), with tau on the log scale. Its moments
    are in closed form."""
    x = np.random.default_rng(seed).normal(size=num)
    initial = {"mu": 0.0, "tau": 1.0}
    common = (_log_prior, _log_likelihood, x, initial, {"tau": constraints.positive})
    squares = float(np.sum((x - x.mean()) ** 2)) + 1
    variances = [squares / (num - 2) / num, 2 * num / squares**2]
    metric = metrics.metric(Partial(_normal_metric, jnp.asarray(float(num))))
    return Problem(
        dataset(*common),
        dataset(*common, batch_size=BATCH),
        metric,
        np.array([0.0, 1.0]),
        np.array([x.mean(), num / squares]),
        np.diag(variances),
        np.zeros(2),
    )


def _weights_prior(w: Any) -> Any:
    return -0.05 * jnp.sum(w**2)


def _label_likelihood(w: Any, datum: Any) -> Any:
    logit = datum[0] @ w
    return datum[1] * logit - jnp.logaddexp(0.0, logit)


def classification(
    data: datasets.Classification, generating: np.ndarray | None, seed: int = 0
) -> Problem:
    """Return logistic regression with the prior N(0, 10 I). Its moments are from a long run of
    HMC-EM."""
    dim = data.x.shape[1]
    common = (_weights_prior, _label_likelihood, tuple(data), jnp.zeros(dim))
    target = dataset(*common)
    metric = metrics.logistic(data.x, np.full(dim, 0.1))
    draws = _reference(target, metric, seed)
    return Problem(
        target,
        dataset(*common, batch_size=BATCH),
        metric,
        generating,
        draws.mean(axis=0),
        np.cov(draws.T),
        np.zeros(dim),
    )


def synthetic(seed: int, is_noisy: bool = True) -> Problem:
    """Return the paper's two normals with weights [1, -1]. Labels are drawn, or the likelier
    ones."""
    data = datasets.synthetic_logistic(seed=seed, is_noisy=is_noisy)
    return classification(data, np.array([1.0, -1.0]), seed)


def _reference(target: Target, metric: Metric, seed: int, num_chains: int = 64) -> np.ndarray:
    """Draw with an exact sampler from the mode: 64 chains of 500 iterations, without the first
    100."""
    centre = mode(target)
    sampler = hmc_em(target, 0.35, 5, dense_mass(jnp.linalg.inv(metric.matrix(centre))))
    init_key, run_key = jax.random.split(keys.key(seed))
    state = sampler.init(init_key, jnp.tile(centre, (num_chains, 1)))
    positions = np.asarray(_scan(sampler, state, jax.random.split(run_key, 500)))[100:]
    return positions.reshape(-1, positions.shape[-1])


@jax.jit
def _scan(sampler: Any, state: Any, keys: Any) -> Any:
    def step(state: Any, key: Any) -> tuple[Any, Any]:
        state, info = sampler.step(key, state)
        return state, info.chains.position

    return jax.lax.scan(step, state, keys)[1]
