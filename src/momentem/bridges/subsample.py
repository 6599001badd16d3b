"""Minibatches of a NumPyro model with one plate of N data and a `subsample_size` of n.

The model is run with the n/2 indices of half a minibatch in place of the plate's own. NumPyro
scales the plate's sites by 2N/n, so that

    log p(u; half) = rest + (2N/n) sum_{i in half} log p(datum_i | u)

is unbiased for log p(u). The gradients of the two halves are combined as in targets/_minibatch.py:
half their sum is the estimate, and half their difference is its noise. With all N indices the same
model gives log p(u) itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Int
from numpyro import handlers
from numpyro.primitives import Messenger

from momentem.bridges import numpyro_model
from momentem.bridges.foreign import Constants
from momentem.bridges.numpyro_model import Site
from momentem.pytrees import Static
from momentem.targets._density import Target
from momentem.targets._minibatch import (
    NoisyGradient,
    StochasticTarget,
    blocks,
    combine_halves,
    curvature_diagonal,
    draw_halves,
)
from momentem.types import Scalar, Vector

__all__ = [
    "Plate",
    "find_subsampled_plate",
    "hide_plate",
    "run_at",
    "stochastic_target",
    "use_all_data",
]

Indices = Int[Array, " rows"]


class Plate(NamedTuple):
    """The plate whose data are subsampled."""

    name: str
    size: int  # N
    subsample_size: int  # n

    def holds(self, message: Any) -> bool:
        """Return whether a primitive's message comes from inside the plate."""
        return any(frame.name == self.name for frame in message.get("cond_indep_stack") or ())


class _FixedIndices(Messenger):
    """Handler that gives a plate fixed indices instead of random ones."""

    def __init__(self, plate: Plate, indices: Indices):
        super().__init__()
        self.plate, self.indices = plate, indices

    def process_message(self, msg: Any) -> None:
        """Set the plate's indices and their number."""
        if msg["type"] == "plate" and msg["name"] == self.plate.name:
            msg["value"], msg["args"] = self.indices, (self.plate.size, len(self.indices))


def find_subsampled_plate(sites: dict[str, Site]) -> Plate | None:
    """Return the subsampled plate of a model, or None."""
    plates = [Plate(name, *site.args) for name, site in sites.items() if site.kind == "plate"]
    found = [p for p in plates if p.subsample_size is not None and p.subsample_size < p.size]
    if not found:
        return None
    if len(found) > 1:
        raise ValueError(
            f"model must subsample one plate at most, got {[p.name for p in found]}; drop "
            "subsample_size from all but the one with the most data"
        )
    if found[0].subsample_size % 2:
        raise ValueError(
            f"subsample_size of plate {found[0].name!r} must be even, because a minibatch has two "
            f"halves, got {found[0].subsample_size}"
        )
    return found[0]


def run_at(model: Callable, plate: Constants, indices: Indices) -> Any:
    """Run the model with these indices in its plate."""
    with _FixedIndices(Plate(*plate.values), indices):
        return model()


def _run_hidden(model: Callable, plate: Constants) -> Any:
    with handlers.block(hide_fn=Plate(*plate.values).holds):
        return model()


def use_all_data(model: Partial, plate: Plate) -> Partial:
    """Return the model with all data in the plate."""
    return Partial(run_at, model, Constants(*plate), jnp.arange(plate.size))


def hide_plate(model: Partial, plate: Plate) -> Partial:
    """Return the model without the sites of the plate."""
    return Partial(_run_hidden, use_all_data(model, plate), Constants(*plate))


def stochastic_target(target: Target, model: Partial, plate: Plate) -> StochasticTarget:
    """Return the minibatch form of the target of all data. The plate of `model` has no indices
    yet."""
    half, scheme = plate.subsample_size // 2, blocks()
    order = scheme.prepare(jnp.arange(plate.size), half)
    _check_indexed(model, plate, order[:half])
    prior = Partial(numpyro_model.logdensity, hide_plate(model, plate), target.unravel)
    return StochasticTarget(
        *target,
        batches=Partial(draw_halves, Partial(scheme.draw), Static(plate.size), Static(half)),
        noisy_gradient=Partial(
            _noisy_gradient, Partial(scheme.read), model, Constants(*plate), target.unravel, order
        ),
        prior_curvature=Partial(curvature_diagonal, prior),
        information_scale=plate.subsample_size / plate.size,
        sizes=(Static(plate.size), Static(plate.subsample_size)),
    )


def _noisy_gradient(
    read: Callable,
    model: Callable,
    plate: Constants,
    unravel: Callable,
    order: Indices,
    batch: Int[Array, " 2"],
    position: Vector,
) -> NoisyGradient:
    half = Plate(*plate.values).subsample_size // 2

    def logdensity(position: Vector, where: Int[Array, ""]) -> Scalar:
        halved = Partial(run_at, model, plate, read(order, where, half))
        return numpyro_model.logdensity(halved, unravel, position)

    return combine_halves(
        *jax.vmap(jax.value_and_grad(logdensity), in_axes=(None, 0))(position, batch)
    )


def _check_indexed(model: Partial, plate: Plate, half: Indices) -> None:
    """Refuse a model with a site in the plate that does not depend on its indices, or a site
    outside that does."""
    rule = (
        f"data in plate {plate.name!r} must be indexed by `with numpyro.plate(...) as indices`, or "
        "by numpyro.subsample"
    )
    try:
        sites = numpyro_model.sites(Partial(run_at, model, Constants(*plate), half))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{rule}; with {len(half)} indices the model says: {error}") from error
    whole = numpyro_model.sites(use_all_data(model, plate))
    for name, site in sites.items():
        if plate.name in site.plates and site.kind == "sample":
            if not _rows(site, plate) <= {1, len(half)}:
                raise ValueError(
                    f"{rule}; with {len(half)} indices, {name!r} has {max(_rows(site, plate))} rows"
                )
        elif site.shape != whole[name].shape:
            raise ValueError(
                f"{name!r} must be inside plate {plate.name!r}, because its shape depends on the "
                "plate's indices; it is outside, where it is not scaled to all data"
            )


def _rows(site: Site, plate: Plate) -> set[int]:
    """Return the numbers of rows that a site and its value have along the plate."""
    axis = site.plates[plate.name] - site.event_dim
    return {shape[axis] if len(shape) >= -axis else 1 for shape in (site.shape, site.value_shape)}
