"""Targets from PyMC models. The position is the flat vector of PyMC's transformed free variables.

    log p(u) = model.logp()                  PyMC's, compiled by JAX, with its transforms' Jacobians

PyMC's data become constants of the compiled program. PyMC is an optional dependency, and is
imported only when it is needed.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from momentem.bridges.foreign import Constants, usual_promotion
from momentem.checks import check_instance
from momentem.targets._density import Target
from momentem.targets.origin import Labels, Origin
from momentem.targets.parameters import Parameters, as_parameters, check_scalar
from momentem.types import Scalar, Vector

__all__ = ["from_pymc", "pymc_labels"]


def from_pymc(model: Any) -> Target:
    """Return the target of a PyMC model. Draws hold its free variables and its deterministics.

    PyMC computes in 64 bits, so JAX must do so, too.

    Args:
        model: a `pymc.Model` whose free variables are continuous.

    Examples:
        >>> import jax, momentem as mt, pymc as pm
        >>> jax.config.update("jax_enable_x64", True)
        >>> with pm.Model() as model:
        ...     scale = pm.HalfNormal("scale")
        ...     variance = pm.Deterministic("variance", scale**2)
        ...     y = pm.Normal("y", 0.0, scale, observed=[1.0, -2.0])
        >>> target = mt.from_pymc(model)
        >>> sorted(target.constrain(target.initial))
        ['scale', 'variance']
    """
    compiled = _load_compiler()
    _check(model)
    values = [model.rvs_to_values[rv] for rv in model.free_RVs]
    names = Constants(*(rv.name for rv in model.free_RVs))
    wanted = {variable.name for variable in [*model.free_RVs, *model.deterministics]}
    shown = {v.name: v for v in model.unobserved_value_vars if v.name in wanted}
    with _quiet_about_blas():
        point = model.initial_point()
        logdensity = compiled(values, [model.logp()])
        constrain = compiled(values, list(shown.values()))
        unconstrain = compiled(*_transform_variables(model))
    free = {name: point[value.name] for name, value in zip(names.values, values, strict=True)}
    initial, unravel = ravel_pytree(as_parameters(free))
    unravel = Partial(unravel)
    as_parameters(dict.fromkeys(shown, 0.0))  # checks the names of deterministics
    target = Target(
        logdensity=Partial(_logdensity, Partial(logdensity), names, unravel),
        initial=initial,
        constrain=Partial(_constrain, Partial(constrain), names, Constants(*shown), unravel),
        unconstrain=Partial(_unconstrain, Partial(unconstrain), names),
        unravel=unravel,
    )
    check_scalar("the log density of model", target.logdensity, initial)
    return target._replace(origin=_origin(model, target, compiled, values, names))


def _origin(
    model: Any, target: Target, compiled: Callable, values: list[Any], names: Constants
) -> Origin:
    """Return what predictions and labels need of the model."""
    seen = model.observed_RVs
    with _quiet_about_blas():
        terms = compiled(values, model.logp(vars=seen, jacobian=False, sum=False))
        observed = {rv.name: np.asarray(_data(model.rvs_to_values[rv])) for rv in seen}
    arguments = {v.name: np.asarray(_data(v)) for v in model.data_vars}
    known = {id(model.rvs_to_values[rv]) for rv in seen}
    constant = {v.name: arguments[v.name] for v in model.data_vars if id(v) not in known}
    shown = [*model.free_RVs, *model.deterministics, *seen, *model.data_vars]
    return Origin(
        terms=Partial(_terms, Partial(terms), Constants(*observed), names, target),
        data=None,
        num_rows=None,
        observed=observed,
        constant=constant,
        labels=Labels(**_labels(model, {variable.name for variable in shown})),
    )


def _data(variable: Any) -> Any:
    """Return the value of a constant or shared variable."""
    return variable.get_value() if hasattr(variable, "get_value") else variable.eval()


def _terms(
    compiled: Callable,
    seen: Constants,
    names: Constants,
    target: Target,
    parameters: Parameters,
    rows: Any,
) -> dict[str, Any]:
    """Return the log likelihood of every datum, by observed variable."""
    del rows
    free = target.unravel(target.unconstrain(parameters))
    with usual_promotion():
        found = compiled(*(free[name] for name in names.values))
    return dict(zip(seen.values, found, strict=True))


def pymc_labels(model: Any) -> dict[str, Any]:
    """Return a PyMC model's `dims` and `coords`, for `sample(target, ..., **pymc_labels(model))`.

    Args:
        model: a `pymc.Model`.

    Examples:
        >>> import momentem as mt, pymc as pm
        >>> with pm.Model(coords={"city": ["Rome", "Oslo"]}) as model:
        ...     x = pm.Normal("x", dims="city")
        >>> mt.pymc_labels(model)
        {'dims': {'x': ['city']}, 'coords': {'city': ['Rome', 'Oslo']}}
    """
    _load_compiler()
    _check(model)
    return _labels(model, {v.name for v in [*model.free_RVs, *model.deterministics]})


def _labels(model: Any, shown: set[str]) -> dict[str, Any]:
    """Return the dims and coords of these variables."""
    known = {name: list(labels) for name, labels in model.coords.items() if labels is not None}
    dims = {name: list(d) for name, d in model.named_vars_to_dims.items() if name in shown}
    used = {dim for names in dims.values() for dim in names}
    return {"dims": dims, "coords": {name: known[name] for name in known if name in used}}


def _load_compiler() -> Callable[..., Any]:
    """Return PyMC's compiler to JAX. It is imported in a separate thread: the import restores JAX's
    settings globally, and settings of a `with` block around this call must not become global."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_import_compiler).result()


def _import_compiler() -> Callable[..., Any]:
    """Import the compiler, and restore JAX's settings: the import sets 100 devices and PyTensor's
    precision."""
    flags, is_x64 = os.environ.get("XLA_FLAGS"), jax.config.read("jax_enable_x64")
    try:
        from pymc.sampling.jax import get_jaxified_graph
    except ImportError as error:
        raise ImportError(
            f"from_pymc needs PyMC, which cannot be imported: {error}; install it with "
            "pip install 'momentem[pymc]'"
        ) from error
    finally:
        jax.config.update("jax_enable_x64", is_x64)
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
    return get_jaxified_graph


def _check(model: Any) -> None:
    import pymc
    import pytensor

    check_instance(pymc.Model, "build it with `with pymc.Model() as model`", model=model)
    precision = "float64" if jax.config.read("jax_enable_x64") else "float32"
    if pytensor.config.floatX != precision:
        raise ValueError(
            f"JAX must compute in PyTensor's {pytensor.config.floatX}, got {precision}; set "
            "jax.config.update('jax_enable_x64', True), or pytensor.config.floatX before the "
            "model is built"
        )
    if not model.free_RVs:
        raise ValueError("model must have a free variable to sample, got none")
    if model.discrete_value_vars:
        raise ValueError(
            "free variables of model must be continuous, got "
            f"{sorted(v.name for v in model.discrete_value_vars)}; sum them out, e.g. with "
            "pymc.Mixture"
        )
    minibatched = [rv.name for rv in model.observed_RVs if _is_minibatch(rv)]
    if minibatched:
        raise ValueError(
            f"model must use all its data, got minibatches in {minibatched}; give all data to the "
            "model, or write it with momentem.dataset or momentem.from_numpyro"
        )


def _is_minibatch(rv: Any) -> bool:
    from pymc.variational.minibatch_rv import MinibatchRandomVariable

    return isinstance(rv.owner.op, MinibatchRandomVariable)


@contextmanager
def _quiet_about_blas() -> Iterator[None]:
    """Silence PyTensor's warning about a missing BLAS, which is not used: JAX has its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS")
        yield


def _transform_variables(model: Any) -> tuple[list[Any], list[Any]]:
    """Return symbols for the constrained free variables, and the unconstrained variables as
    functions of them."""
    from pytensor.graph.replace import graph_replace

    given = {rv: rv.type(name=rv.name) for rv in model.free_RVs}
    transforms = [model.rvs_to_transforms[rv] for rv in given]
    forward = [
        x if transform is None else transform.forward(x, *rv.owner.inputs)
        for (rv, x), transform in zip(given.items(), transforms, strict=True)
    ]
    return list(given.values()), graph_replace(forward, given, strict=False)


def _logdensity(
    compiled: Callable, names: Constants, unravel: Callable, position: Vector
) -> Scalar:
    free = unravel(position)
    with usual_promotion():
        return compiled(*(free[name] for name in names.values))[0]


def _constrain(
    compiled: Callable, names: Constants, shown: Constants, unravel: Callable, position: Vector
) -> Parameters:
    free = unravel(position)
    with usual_promotion():
        found = compiled(*(free[name] for name in names.values))
    return {name: jnp.asarray(v) for name, v in zip(shown.values, found, strict=True)}


def _unconstrain(compiled: Callable, names: Constants, parameters: Parameters) -> Vector:
    with usual_promotion():
        found = compiled(*(parameters[name] for name in names.values))
    return ravel_pytree(dict(zip(names.values, found, strict=True)))[0]
