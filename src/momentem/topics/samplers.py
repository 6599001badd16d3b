"""The samplers of the paper's topic experiment, and the same tuned by our M-step.

sghmc, sgnht, sg-nphmc              a mass that stays: of the topics' block what the words'
                                    frequencies give, of the others the identity
sghmc-em, sgnht-em, sg-nphmc-em     the paper's M-step on times and hyperparameters, S_count fixed
sghmc-tuned, sgnht-tuned, …         mass, noise and step size of all blocks from minibatch noise
sgr-nphmc                           a diagonal metric that follows topics and weights
"""

from typing import Any

import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from momentem import kernels, riemannian
from momentem.checks import check_positive
from momentem.em import e_steps, fixed, m_steps, monte_carlo_em
from momentem.em.m_steps import MStep
from momentem.em.schedules import latest, polynomial
from momentem.masses import DiagonalMass
from momentem.riemannian.ensemble import as_sampler
from momentem.riemannian.fixed_points import iterations
from momentem.targets._minibatch import StochasticTarget
from momentem.topics._corpus import Corpus
from momentem.topics.model import Blocks, Model, expected_curvature, topics_of
from momentem.types import Learnt, Sampler, Vector

__all__ = ["SAMPLERS", "make_sampler"]

KERNELS = {"sghmc": kernels.sghmc, "sgnht": kernels.sgnht, "sg-nphmc": kernels.sg_nphmc}
SAMPLERS = (
    *KERNELS,
    *[f"{name}-em" for name in KERNELS],
    *[f"{name}-tuned" for name in KERNELS],
    "sgr-nphmc",
)


def make_sampler(
    name: str,
    model: Model,
    train: Corpus,
    target: StochasticTarget,
    num_steps: int = 10,
    step_size: float | None = None,
    friction: float | None = None,
) -> Sampler:
    """Return the sampler of a name.

    Args:
        name: one of SAMPLERS.
        model: what is sampled.
        train: its documents.
        target: its posterior, by minibatches of those documents.
        num_steps: steps, each with a minibatch of its own, per iteration.
        step_size: of samplers whose step size is not learnt. Default: 0.0025, or 0.01 where the
            metric follows the topics.
        friction: A, per unit of time. Default: 1 where the noise is learnt, 10 with a metric, which
            keeps the noise small, and 20 otherwise.
    """
    if name not in SAMPLERS:
        raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {name!r}")
    is_tuned, is_metric = name.endswith("-tuned"), name == "sgr-nphmc"
    # a word that one topic owns has the gradient noise K N/n times its mass: at eps / A = 1/8000 it
    # is as hot as 1.7, for a batch of 1 % and K = 100, and all other words are cooler
    if step_size is None:
        step_size = 0.01 if is_metric else 0.0025
    if friction is None:
        friction = 1.0 if is_tuned else 10.0 if is_metric else 20.0
    check_positive(step_size=step_size, friction=friction)
    if is_metric:
        totals = jnp.asarray([train.num_tokens, train.num_documents], model.rounds.dtype)
        metric = riemannian.metrics.metric(Partial(_metric, model, totals))
        moving = riemannian.sgr_nphmc(
            target, metric, step_size, num_steps, friction, fixed_point=iterations(2)
        )
        return as_sampler(moving, model.dim)
    kernel = KERNELS[name.removesuffix("-em").removesuffix("-tuned")](target, num_steps, friction)
    if is_tuned:
        start = _learnt(DiagonalMass(jnp.ones(model.dim, model.rounds.dtype)), 1e-8)
        # 20 draws of ten minibatches each: the mass must follow the topics as they form
        m_step, e_step = m_steps.noise(kernel), e_steps.geometric(20)
        return monte_carlo_em(kernel, start, m_step, e_step, latest())
    start = _learnt(DiagonalMass(1 / _steady_mass(model)), step_size)
    if not name.endswith("-em"):
        return fixed(kernel, start)
    is_nose = "nphmc" in name
    m_step = _within(m_steps.momentum_printed(), _learnt_blocks(model))
    m_step = m_steps.with_thermostat(m_step) if is_nose else m_step
    e_step = e_steps.constant(50 if is_nose else 100)  # S_count of the paper's section 4.3
    return monte_carlo_em(kernel, start, m_step, e_step, polynomial())


def _learnt(mass: DiagonalMass, step_size: float) -> Learnt:
    return Learnt(mass, jnp.asarray(step_size, mass.inverse_mass.dtype))


def _steady_mass(model: Model) -> Vector:
    """Return, for topics, the counts that each would have if all were alike; for the rest 1."""
    topics = model.blocks(
        expected_curvature(model, jnp.zeros(model.dim, model.rounds.dtype))
    ).topics
    ones = jnp.ones_like(model.rounds)
    return Model.flat(Blocks(topics, ones, ones, jnp.ones(3, ones.dtype)))


def _learnt_blocks(model: Model) -> Array:
    """Return a mask that is true for times and hyperparameters."""
    V, K = model.num_words.value, model.num_topics.value
    no, yes = jnp.zeros((V, K)), jnp.ones(K)
    return Model.flat(Blocks(no, 0 * yes, yes, jnp.ones(3))) > 0


def _within(m_step: MStep, mask: Any) -> MStep:
    """Return an M-step that changes the entries of a diagonal mass where the mask is true."""
    return m_step._replace(estimate=Partial(_estimate_within, m_step, mask))


def _estimate_within(m_step: MStep, mask: Any, statistic: Any, learnt: Learnt) -> DiagonalMass:
    estimate, mass = m_step.estimate(statistic, learnt), learnt.mass
    return DiagonalMass(
        jnp.where(mask, estimate.inverse_mass_diagonal(), mass.inverse_mass_diagonal())
    )


def _metric(model: Model, totals: Any, position: Vector) -> Vector:
    """Return expected counts of words in topics and of documents with a topic, and the prior's
    curvature."""
    phi, r = topics_of(model, position)
    share = r / jnp.sum(r)
    tokens, documents = totals
    counts = Blocks(
        tokens * share[None] * phi, documents * r, jnp.zeros_like(r), jnp.zeros_like(r, shape=3)
    )
    return Model.flat(counts) + expected_curvature(model, position)
