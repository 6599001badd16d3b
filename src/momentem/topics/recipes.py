"""The samplers of the paper's topic experiment, and the same tuned by our M-step.

sghmc, sgnht, sg-nphmc              a mass that stays: of the topics' block what the words'
                                    frequencies give, of the others the identity
sghmc-em, sgnht-em, sg-nphmc-em     the paper's M-step on times and hyperparameters, S_count fixed
sghmc-tuned, sgnht-tuned, …         mass, noise and step size of all blocks from minibatch noise
sgr-nphmc                           a diagonal metric that follows topics and weights
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from momentem import kernels, riemannian
from momentem.em import e_steps, fixed, m_steps, monte_carlo_em
from momentem.em.m_steps import MStep
from momentem.em.schedules import latest, polynomial
from momentem.masses import DiagonalMass
from momentem.riemannian.ensemble import as_sampler
from momentem.riemannian.fixed_points import iterations
from momentem.targets._minibatch import StochasticTarget
from momentem.topics.corpus import Corpus
from momentem.topics.model import Blocks, Model, expected_curvature, topics_of
from momentem.types import Learnt, Sampler, Vector

__all__ = ["RECIPES", "Recipe", "recipe"]

KERNELS = {"sghmc": kernels.sghmc, "sgnht": kernels.sgnht, "sg-nphmc": kernels.sg_nphmc}
RECIPES = (
    *KERNELS,
    *[f"{name}-em" for name in KERNELS],
    *[f"{name}-tuned" for name in KERNELS],
    "sgr-nphmc",
)


class Recipe(NamedTuple):
    """How the global variables move: a sampler for every target, while it learns and after."""

    learning: Callable[[StochasticTarget], Sampler]
    frozen: Callable[[StochasticTarget, Learnt | None], Sampler]


def recipe(
    name: str,
    model: Model,
    train: Corpus,
    num_steps: int = 10,
    step_size: float | None = None,
    friction: float | None = None,
) -> Recipe:
    """A sampler of the topic model by its name.

    Args:
        name: one of RECIPES.
        model: what is sampled.
        train: the documents it will be sampled on.
        num_steps: steps, each with a minibatch of its own, per iteration.
        step_size: of samplers whose step size is not learnt; None is 0.0025, and 0.01 where the
            metric follows the topics.
        friction: A, per unit of time; None is 20 where the noise is not known (10 with a metric,
            which keeps it small), else 1.
    """
    if name not in RECIPES:
        raise ValueError(f"sampler must be one of {', '.join(RECIPES)}, got {name!r}")
    is_tuned = name.endswith("-tuned")
    if name == "sgr-nphmc":
        return _riemannian(model, train, num_steps, step_size or 0.01, friction or 10.0)
    # a word that one topic owns has the gradient noise K N/n times its mass: at eps / A = 1/8000 it
    # is as hot as 1.7, for a batch of 1 % and K = 100, and all other words are cooler
    step_size = step_size or 0.0025
    A = friction or (1.0 if is_tuned else 20.0)
    kernel_of = KERNELS[name.removesuffix("-em").removesuffix("-tuned")]
    is_nose = "nphmc" in name

    def kernel(target: StochasticTarget) -> Any:
        return kernel_of(target, num_steps, A)

    def frozen(target: StochasticTarget, learnt: Learnt | None) -> Sampler:
        assert learnt is not None
        return fixed(kernel(target), learnt)

    if is_tuned:
        identity = DiagonalMass(jnp.ones(model.dim, model.rounds.dtype))

        def tuned(target: StochasticTarget) -> Sampler:
            # 20 draws of ten minibatches each: the mass must follow the topics as they form
            m_step, e_step = m_steps.noise(kernel(target)), e_steps.geometric(20)
            start = _learnt(identity, 1e-8)
            return monte_carlo_em(kernel(target), start, m_step, e_step, latest())

        return Recipe(tuned, frozen)

    start = _learnt(DiagonalMass(1 / _steady_mass(model)), step_size)
    if not name.endswith("-em"):
        return Recipe(lambda target: frozen(target, start), frozen)
    m_step = _within(m_steps.momentum_printed(), _learnt_blocks(model))
    m_step = m_steps.with_thermostat(m_step) if is_nose else m_step
    e_step = e_steps.constant(50 if is_nose else 100)  # S_count of the paper's section 4.3
    return Recipe(
        lambda target: monte_carlo_em(kernel(target), start, m_step, e_step, polynomial()), frozen
    )


def _learnt(mass: DiagonalMass, step_size: float) -> Learnt:
    return Learnt(mass, jnp.asarray(step_size, mass.inverse_mass.dtype))


def _steady_mass(model: Model) -> Vector:
    """Of topics the counts that each would have if all were alike; of the rest 1."""
    topics = model.blocks(
        expected_curvature(model, jnp.zeros(model.dim, model.rounds.dtype))
    ).topics
    ones = jnp.ones_like(model.rounds)
    return Model.flat(Blocks(topics, ones, ones, jnp.ones(3, ones.dtype)))


def _learnt_blocks(model: Model) -> Array:
    """True for times and hyperparameters."""
    V, K = model.num_words.value, model.num_topics.value
    no, yes = jnp.zeros((V, K)), jnp.ones(K)
    return Model.flat(Blocks(no, 0 * yes, yes, jnp.ones(3))) > 0


def _within(m_step: MStep, mask: Any) -> MStep:
    """An M-step that changes the entries of a diagonal mass where the mask is true."""
    return m_step._replace(estimate=Partial(_estimate_within, m_step, mask))


def _estimate_within(m_step: MStep, mask: Any, statistic: Any, learnt: Learnt) -> DiagonalMass:
    estimate, mass = m_step.estimate(statistic, learnt), learnt.mass
    return DiagonalMass(
        jnp.where(mask, estimate.inverse_mass_diagonal(), mass.inverse_mass_diagonal())
    )


def _riemannian(
    model: Model, train: Corpus, num_steps: int, step_size: float, friction: float
) -> Recipe:
    totals = jnp.asarray([train.num_tokens, train.num_documents], model.rounds.dtype)
    metric = riemannian.metrics.metric(Partial(_metric, model, totals))

    def sampler(target: StochasticTarget, learnt: Learnt | None = None) -> Sampler:
        del learnt
        kernel = riemannian.sgr_nphmc(
            target, metric, step_size, num_steps, friction, fixed_point=iterations(2)
        )
        return as_sampler(kernel, model.dim)

    return Recipe(sampler, sampler)


def _metric(model: Model, totals: Any, position: Vector) -> Vector:
    """Expected counts of words in topics, of documents with a topic, and the prior's curvature."""
    phi, r = topics_of(model, position)
    share = r / jnp.sum(r)
    tokens, documents = totals
    counts = Blocks(
        tokens * share[None] * phi, documents * r, jnp.zeros_like(r), jnp.zeros_like(r, shape=3)
    )
    return Model.flat(counts) + expected_curvature(model, position)
