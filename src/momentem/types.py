"""The words the package speaks: what is learnt, what moves a chain, what moves an ensemble.

A `Kernel` moves one chain and leaves open everything that EM can learn; a `Sampler` moves an
ensemble of chains and leaves nothing open. Both are NamedTuples of functions bound to their
arguments with `jax.tree_util.Partial`, so they are pytrees: the data and the hyperparameters inside
them are arguments of the compiled program, not constants of it
(docs/decisions/0001-samplers-are-pytrees.md).

`Learnt` holds what EM sets: the mass, the step size, and anything else by name. To make something
new learnable, a kernel names it in `complete` and reads it in `step`, and an M-step sets it;
nothing else has to know of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, GetAttrKey, Partial
from jaxtyping import Array, Bool, Float, Int, Key

from momentem.pytrees import find_node

__all__ = ["EnsembleInfo", "Friction", "Info", "Kernel", "Learnt", "Mass", "Sampler"]

PRNGKey = Key[Array, ""]
PRNGKeys = Key[Array, " chains"]
Scalar = Float[Array, ""]
Count = Int[Array, ""]
Flag = Bool[Array, ""]
Vector = Float[Array, " dim"]
Matrix = Float[Array, "dim dim"]
Vectors = Float[Array, "chains dim"]
Scalars = Float[Array, " chains"]


@runtime_checkable
class Mass(Protocol):
    """How a mass M acts. M_I = M^-1 is its inverse, and F a factor with F F' = M.

    This is all that kernels need of a mass. What M-steps need besides is in
    `momentem.masses.protocol`.
    """

    def velocity(self, momentum: Vector) -> Vector:
        """Return M^-1 p."""
        ...

    def colour(self, whitened: Vector) -> Vector:
        """Return F y, a momentum with covariance M if y is standard normal."""
        ...

    def whiten(self, momentum: Vector) -> Vector:
        """Return F^-1 p, the inverse of `colour`."""
        ...

    def drift(self, whitened: Vector) -> Vector:
        """Return F^-T y, the velocity M^-1 p of the momentum p = F y."""
        ...

    def unfold(self, vector: Vector) -> Vector:
        """Return F' x, the inverse of `drift`."""
        ...

    def sample(self, key: PRNGKey) -> Vector:
        """Draw one momentum from N(0, M)."""
        ...

    def kinetic_energy(self, momentum: Vector) -> Scalar:
        """Return p' M^-1 p / 2."""
        ...

    def transport(self, momentum: Vector, old: "Mass") -> Vector:
        """Turn p ~ N(0, old) into a momentum of N(0, M): F F_old^-1 p."""
        ...

    def log_determinant(self) -> Scalar:
        """Return log |M|."""
        ...

    def inverse_mass_diagonal(self) -> Vector:
        """Return the diagonal of M_I."""
        ...

    def condition_number(self) -> Scalar:
        """Return the largest over the smallest eigenvalue of M_I."""
        ...

    def is_proper(self) -> Flag:
        """Return whether M_I is finite and positive definite."""
        ...


@jax.tree_util.register_pytree_with_keys_class
class Learnt:
    """What EM can set: the mass, the step size, and whatever else a kernel leaves open, by name.

    Entries are read as attributes: `learnt.noise`. Each is an array or a dict of arrays. An entry
    that is None counts as not given.

    Args:
        mass: how momenta are scaled.
        step_size: of the integrator.
        **others: what else the kernel leaves open, such as `noise` (variances of the gradient noise
            V in the mass's frame, V = F diag(noise) F'), `thermostat_mass` (mu of SGNHT, Q of
            SG-NPHMC), `centre` and `path` (of rotating HMC), `anchor` (of control variates).

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), 0.5, centre=jnp.zeros(2))
        >>> sorted(learnt.others)
        ['centre']
        >>> learnt.replace(step_size=0.1).step_size
        0.1
    """

    mass: Any
    step_size: Any

    def __init__(self, mass: Any, step_size: Any, **others: Any):
        self.mass, self.step_size = mass, step_size
        given = sorted(others.items())
        self.others = {name: value for name, value in given if value is not None}

    def __getattr__(self, name: str) -> Any:
        others = self.__dict__.get("others", {})  # absent while the object is being built
        if name in others:
            return others[name]
        known = ", ".join(["mass", "step_size", *others])
        raise AttributeError(f"nothing named {name!r} is learnt, only {known}")

    def __contains__(self, name: str) -> bool:
        return name in self.others

    def __repr__(self) -> str:
        others = "".join(f", {name}={value!r}" for name, value in self.others.items())
        return f"Learnt({self.mass!r}, {self.step_size!r}{others})"

    def replace(self, **changes: Any) -> "Learnt":
        """Return a copy with some entries replaced or added."""
        return Learnt(**{"mass": self.mass, "step_size": self.step_size, **self.others, **changes})

    def with_defaults(self, **defaults: Any) -> "Learnt":
        """Return a copy in which entries that are missing have these values, and those that are
        given have their shapes and dtypes."""
        others = {
            name: _shaped(name, self.others.get(name, value), value)
            for name, value in defaults.items()
        }
        return self.replace(**others)

    def arrays(self) -> dict[str, Array]:
        """Return all arrays by name: those of the mass by its own field names, the others by theirs
        (`name.key` for an entry that is a dict)."""
        paths, _ = jax.tree_util.tree_flatten_with_path(
            {"step_size": self.step_size, **self.others}
        )
        found = dict(self.mass._asdict())
        for path, array in paths:
            name = ".".join(str(part.key) for part in path)
            if name in found:
                raise ValueError(f"two things that are learnt have the name {name!r}; rename one")
            found[name] = array
        return found

    @staticmethod
    def from_arrays(mass: Any, arrays: dict[str, Array]) -> "Learnt":
        """Return what had these `arrays`, given its mass."""
        entries: dict[str, Any] = {}
        for name, array in arrays.items():
            *parents, last = name.split(".")
            place = entries
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = array
        return Learnt(mass, **entries)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        """Flatten, for JAX."""
        entries = {"mass": self.mass, "step_size": self.step_size, **self.others}
        return [(GetAttrKey(name), value) for name, value in entries.items()], tuple(self.others)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: Any) -> "Learnt":
        """Unflatten, for JAX: nothing is checked, as leaves may be anything inside JAX."""
        learnt = object.__new__(cls)
        learnt.mass, learnt.step_size, *others = values
        learnt.others = dict(zip(names, others, strict=True))
        return learnt


def _is_plain_name(part: Any) -> bool:
    """Return whether a step into a pytree can be a part of an array's name in a trace."""
    return isinstance(part, DictKey) and isinstance(part.key, str) and "." not in part.key


def _shaped(name: str, value: Any, default: Any) -> Any:
    """`value` with the structure, shapes and dtypes of `default`."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(default)
    for path, _ in leaves:
        if not all(_is_plain_name(part) for part in path):
            raise TypeError(
                f"{name} must be an array or a dict of arrays, to be kept in a trace, got "
                f"{type(default).__name__}; use a dict whose keys are strings without dots"
            )
    if not isinstance(default, dict):
        value = jnp.asarray(value)  # a list of numbers, as a user may write it
    if jax.tree.structure(value) != structure:
        raise ValueError(f"{name} must have the structure {structure}, got {value!r:.80}")

    def cast(given: Any, like: Any) -> Array:
        array = jnp.asarray(given, jnp.asarray(like).dtype)
        if array.shape != jnp.shape(like):
            raise ValueError(f"{name} must have shape {jnp.shape(like)}, got {array.shape}")
        return array

    return jax.tree.map(cast, value, default)


class Friction(NamedTuple):
    """A, the friction that a stochastic kernel injects noise for, per unit of time. A class of its
    own, so that M-steps can find it in the kernel."""

    rate: Any


class Info(NamedTuple):
    """What a kernel reports of one step of one chain: the draw, and what M-steps learn from."""

    position: Vector
    momentum: Vector  # as accepted, at the end of the step
    gradient: Vector  # of the log density at `position`
    stats: dict[str, Array]  # under ArviZ's sample_stats names
    noise: Any = None  # samples of the gradient noise met on the way, (steps, dim)
    information: Any = None  # samples with covariance (N/n) x Fisher information; None: the noise


class EnsembleInfo(NamedTuple):
    """What a sampler reports of one step of all its chains."""

    chains: Info  # every leaf with a leading axis of chains
    learning: dict[str, Array]  # what EM did in this step; empty where nothing is learnt


def keep_state(state: Any, old: Learnt, new: Learnt) -> Any:
    """Return the state unchanged: the transport of kernels that redraw their momenta."""
    del old, new
    return state


def keep_learnt(learnt: Learnt) -> Learnt:
    """Return `learnt` unchanged: the completion of kernels that need mass and step size alone."""
    return learnt


def _home(function: Any) -> str:
    """Return the module that a bound function comes from, without the names that say nothing."""
    module = getattr(getattr(function, "func", function), "__module__", None)
    return str(module).removeprefix("momentem.")


class Kernel(NamedTuple):
    """How one chain moves, given what is learnt."""

    init: Callable[..., Any]  # (key, position, learnt) -> state
    step: Callable[..., tuple[Any, Info]]  # (key, state, learnt) -> (state, info)
    transport: Callable[..., Any] = Partial(keep_state)  # (state, old, new learnt) -> state
    share: Any = None  # (key, learnt) -> learnt of one iteration, the same for all chains
    complete: Callable[..., Learnt] = Partial(keep_learnt)  # learnt -> with all it leaves open

    def __repr__(self) -> str:
        return f"Kernel({_home(self.step)})"


class Sampler(NamedTuple):
    """How an ensemble of chains moves."""

    init: Callable[..., Any]  # (key, positions) -> state
    step: Callable[..., tuple[Any, EnsembleInfo]]  # (key, state) -> (state, info)
    freeze: Callable[..., tuple[Any, Any]]  # (state) -> (sampler that learns no more, its state)
    learnt: Callable[
        ..., Learnt | None
    ]  # (state) -> what the chains move by; None if nothing is learnable
    is_settled: Any = None  # (state) -> whether warm-up may end; None: it has the length asked for

    def __repr__(self) -> str:
        kernel = find_node(Kernel, self.step)
        return f"Sampler({_home(self.step)}{'' if kernel is None else f' of {kernel}'})"
