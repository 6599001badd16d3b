"""What predictions and labels need of a NumPyro model: the log likelihood of every datum, draws of
its observed sites for new arguments, its observed arrays, and the names of its plates.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.tree_util import Partial
from numpyro import handlers
from numpyro.primitives import Messenger

from momentem.bridges import numpyro_model
from momentem.bridges.foreign import Constants, usual_promotion
from momentem.bridges.numpyro_model import Site
from momentem.bridges.subsample import Plate, find_subsampled_plate, run_at, use_all_data
from momentem.pytrees import Static
from momentem.targets.origin import SMALL, Labels, Origin, name_leaves

__all__ = ["merge_arguments", "numpyro_origin", "with_constants"]


def numpyro_origin(
    bound: Partial,
    sites: dict[str, Site],
    plate: Plate | None,
    rebind: Partial,
) -> Origin:
    """Return the origin of a NumPyro model.

    Args:
        bound: the model with its arguments.
        sites: of the model.
        plate: the one whose data are subsampled, or None.
        rebind: (new data) -> the model with these arguments in place of its own.
    """
    whole = bound if plate is None else use_all_data(bound, plate)
    latent = Constants(*(name for name, site in sites.items() if site.is_latent))
    seen = Constants(*_observed_names(sites))
    rows, num_rows, scope = None, None, Constants()
    if plate is not None:
        rows, num_rows, scope = np.arange(plate.size), Static(plate.size), Constants(*plate)
    whole_sites = sites if plate is None else numpyro_model.sites(whole)
    return Origin(
        terms=Partial(_terms, bound, scope, latent, seen),
        data=rows,
        num_rows=num_rows,
        observed={name: numpyro_model.observed_value(whole, name) for name in seen.values},
        constant={},
        labels=Labels(_dims(whole_sites)),
        generate=Partial(_generator, rebind, latent, seen),
        draw_prior=Partial(_draw_prior, whole, _shown(whole_sites), seen),
    )


def _shown(sites: dict[str, Site]) -> Constants:
    """Return the names of the sites of the prior: latent and deterministic ones."""
    return Constants(*(n for n, s in sites.items() if s.is_latent or s.kind == "deterministic"))


def _draw_prior(model: Partial, shown: Constants, seen: Constants, key: Any) -> tuple[dict, dict]:
    with usual_promotion():
        trace = handlers.trace(handlers.seed(_Unobserved(model, seen), key)).get_trace()
        groups = ({name: trace[name]["value"] for name in c.values} for c in (shown, seen))
        return tuple(groups)  # pyright: ignore[reportReturnType]


def _observed_names(sites: dict[str, Site]) -> list[str]:
    """Return the names of the sites that explain data. A factor explains none."""
    return [
        name
        for name, site in sites.items()
        if site.kind == "sample" and not site.is_latent and site.distribution.__name__ != "Unit"
    ]


class _Unobserved(Messenger):
    """Handler that lets observed sites be drawn. NumPyro's own takes the key of the innermost
    `seed`, which is fixed here, and would draw the same data again and again."""

    def __init__(self, model: Callable, names: Constants):
        super().__init__(model)
        self.names = names.values

    def process_message(self, msg: Any) -> None:
        """Forget the data of an observed site."""
        if msg["type"] == "sample" and msg["name"] in self.names:
            msg["value"], msg["is_observed"] = None, False


def _substitute(model: Callable, latent: Constants, parameters: Any) -> Callable:
    """Return the model at these values of its latent sites. Deterministic sites are computed."""
    return handlers.substitute(model, data={name: parameters[name] for name in latent.values})


def _terms(
    model: Partial,
    scope: Constants,
    latent: Constants,
    seen: Constants,
    parameters: Any,
    rows: Any,
) -> dict[str, Any]:
    """Return the log likelihood of every datum by site, without the plates' scales."""
    plate = Plate(*scope.values) if scope.values else None
    here = model if plate is None else Partial(run_at, model, scope, rows)
    with usual_promotion():
        trace = handlers.trace(_substitute(here, latent, parameters)).get_trace()
        found = {name: trace[name] for name in seen.values}
        return {
            name: site["fn"].log_prob(site["value"])
            for name, site in found.items()
            if plate is None or plate.holds(site)
        }


def _generator(rebind: Partial, latent: Constants, seen: Constants, new_data: Any) -> Partial:
    """Return the function (key, parameters) -> {name: (distribution, value)} for new arguments."""
    bound = rebind(new_data)
    sites = numpyro_model.sites(bound)
    plate = find_subsampled_plate(sites)
    whole = bound if plate is None else use_all_data(bound, plate)
    return Partial(_generate, whole, latent, seen)


def _generate(
    model: Partial, latent: Constants, seen: Constants, key: Any, parameters: Any
) -> dict[str, Any]:
    with usual_promotion():
        free = _Unobserved(_substitute(model, latent, parameters), seen)
        trace = handlers.trace(handlers.seed(free, key)).get_trace()
        return {name: (trace[name]["fn"], trace[name]["value"]) for name in seen.values}


def merge_arguments(
    model: Callable, args: tuple, kwargs: dict[str, Any], new_data: Any
) -> tuple[tuple, dict[str, Any]]:
    """Return a model's arguments with some replaced: the first ones by a tuple, others by name."""
    if new_data is None:
        return args, kwargs
    if not isinstance(new_data, dict):
        given = new_data if isinstance(new_data, tuple) else (new_data,)
        return (*given, *args[len(given) :]), kwargs
    try:
        names = list(inspect.signature(model).parameters)[: len(args)]
    except (TypeError, ValueError):
        names = []
    merged = tuple(
        new_data.get(names[i], value) if i < len(names) else value for i, value in enumerate(args)
    )
    return merged, kwargs | {k: v for k, v in new_data.items() if k not in names}


def with_constants(origin: Origin, model: Callable, args: tuple, kwargs: dict[str, Any]) -> Origin:
    """Return the origin with the arrays that the model is given besides its data, by the names of
    its arguments, if they are few. One with as many rows as the data shares their dimension."""
    try:
        named = inspect.signature(model).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return origin
    arrays = {k: x for k, x in name_leaves(named).items() if _has_numbers(x)}
    is_here = all(getattr(x, "is_fully_addressable", True) for x in arrays.values())
    if not is_here or sum(x.size for x in arrays.values()) > SMALL:
        return origin
    seen, dims = origin.observed, dict(origin.labels.dims)
    constant = {
        name: array
        for name, array in arrays.items()
        if name not in seen and not any(_is_equal(array, other) for other in seen.values())
    }
    for name, array in constant.items():
        alike = [n for n, x in seen.items() if n in dims and x.shape[:1] == array.shape[:1]]
        if alike:
            dims.setdefault(name, dims[alike[0]][:1])
    return origin._replace(constant=constant, labels=Labels(dims, origin.labels.coords))


def _has_numbers(value: Any) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return kind in tuple("biufc") and value.ndim > 0


def _is_equal(array: Any, other: Any) -> bool:
    return array.shape == other.shape and np.array_equal(array, other)


def _dims(sites: dict[str, Site]) -> dict[str, list[str]]:
    """Return the names of plates as the dimensions of the sites inside them."""
    sizes = {name: site.args[0] for name, site in sites.items() if site.kind == "plate"}
    found = {}
    for name, site in sites.items():
        if site.kind not in ("sample", "deterministic") or not site.plates:
            continue
        shape = site.value_shape
        # the axes of a plate are counted without those of an event; a deterministic site does not
        # say how many those are, so that the first number which fits is taken
        events = [site.event_dim] if site.kind == "sample" else range(len(shape))
        for event_dim in events:
            axes = {len(shape) - event_dim + axis: p for p, axis in site.plates.items()}
            if all(axis >= 0 and shape[axis] == sizes.get(p) for axis, p in axes.items()):
                last = max(axes) + 1
                found[name] = [axes.get(i, f"{name}_dim_{i}") for i in range(last)]
                break
    return found
