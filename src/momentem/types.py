"""The words the package speaks: what is learnt, what moves a chain, what moves an ensemble.

A `Kernel` moves one chain and leaves open everything that EM can learn; a `Sampler` moves an
ensemble of chains and leaves nothing open. Both are NamedTuples of functions bound to their
arguments with `jax.tree_util.Partial`, so they are pytrees: the data and the hyperparameters inside
them are arguments of the compiled program, not constants of it
(docs/decisions/0001-samplers-are-pytrees.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int, Key

__all__ = ["EnsembleInfo", "Info", "Kernel", "Learnt", "Mass", "RiemannianKernel", "Sampler"]

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
    """How a mass M acts on momenta; M_I = M^-1 is its inverse, and F a factor with F F' = M."""

    def velocity(self, momentum: Vector) -> Vector:
        """M^-1 p."""
        ...

    def colour(self, whitened: Vector) -> Vector:
        """F y: turns standard normal y into a momentum with covariance M."""
        ...

    def whiten(self, momentum: Vector) -> Vector:
        """F^-1 p, the inverse of `colour`."""
        ...

    def drift(self, whitened: Vector) -> Vector:
        """F^-T y: the velocity M^-1 p of the momentum p = F y."""
        ...

    def noise_matrix(self, noise: Vector) -> Array:
        """V = F diag(noise) F', the gradient noise whose variances in the frame of F are
        `noise`."""
        ...

    def framed(self, noise_matrix: Array) -> tuple[Any, Vector]:
        """The same mass with F turned to the eigenframe of V, and the variances of V in it."""
        ...

    def sample(self, key: PRNGKey) -> Vector:
        """One momentum from N(0, M)."""
        ...

    def kinetic_energy(self, momentum: Vector) -> Scalar:
        """p' M^-1 p / 2."""
        ...

    def transport(self, momentum: Vector, old: "Mass") -> Vector:
        """Carries p ~ N(0, old) over to N(0, M): F F_old^-1 p."""
        ...

    def log_determinant(self) -> Scalar:
        """log |M|."""
        ...

    def average(self, estimate: Any, rate: Scalar) -> Any:
        """(1 - rate) M_I + rate M_I_est, as a mass."""
        ...

    def inverse_mass_diagonal(self) -> Vector:
        """The diagonal of M_I."""
        ...

    def unfold(self, vector: Vector) -> Vector:
        """F' x, the inverse of `drift`."""
        ...

    def with_variances(self, variances: Vector) -> Any:
        """The mass of this structure with M_I = diag(variances)."""
        ...

    def condition_number(self) -> Scalar:
        """Largest over smallest eigenvalue of M_I."""
        ...

    def is_proper(self) -> Flag:
        """Whether M_I is finite and positive definite."""
        ...


class Learnt(NamedTuple):
    """Everything that EM can set."""

    mass: Mass
    step_size: Scalar
    noise: Any = None  # variances of the gradient noise V in the mass's frame: V = F diag(noise) F'
    thermostat_mass: Any = None  # mu of SGNHT, Q of SG-NPHMC
    centre: Any = None  # mu of the Gaussian that rotating steps are exact for
    path: Any = None  # mean length of HMC's paths, in whitened time
    anchor: Any = None  # of control variates that follow the draws

    def arrays(self) -> dict[str, Any]:
        """By name: those of the mass, and whatever else there is."""
        mass: Any = self.mass
        others = self._replace(mass=None)._asdict()  # pyright: ignore[reportArgumentType]
        if self.anchor is not None:
            others["anchor"] = self.anchor.position
        return mass._asdict() | {name: leaf for name, leaf in others.items() if leaf is not None}


class Info(NamedTuple):
    """What a kernel tells of one step of one chain: the draw, and what M-steps learn from."""

    position: Vector
    momentum: Vector  # as accepted, at the end of the step
    gradient: Vector  # of the log density at `position`
    stats: dict[str, Array]  # under ArviZ's sample_stats names
    noise: Any = None  # samples of the gradient noise met on the way, (steps, dim)
    information: Any = None  # samples with covariance (N/n) x Fisher information; None: the noise


class EnsembleInfo(NamedTuple):
    """What a sampler tells of one step of all its chains."""

    chains: Info  # every leaf with a leading axis of chains
    learning: dict[str, Array]  # what EM did in this step; empty where nothing is learnt


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """A number that must stay concrete under jit: it becomes a shape, or decides what is built."""

    value: int


def as_partial(function: Callable[..., Any]) -> Partial:
    """`function` as a pytree. One that is a Partial already keeps its bound arrays as leaves."""
    return function if isinstance(function, Partial) else Partial(function)


def keep(state: Any, old: Learnt, new: Learnt) -> Any:
    """The transport of kernels that redraw their momenta: nothing to carry over."""
    del old, new
    return state


class Kernel(NamedTuple):
    """How one chain moves, given what is learnt."""

    init: Callable[..., Any]  # (key, position, learnt) -> state
    step: Callable[..., tuple[Any, Info]]  # (key, state, learnt) -> (state, info)
    transport: Callable[..., Any] = Partial(keep)  # (state, old learnt, new learnt) -> state
    share: Any = None  # (key, learnt) -> learnt of one iteration, the same for all chains


class RiemannianKernel(NamedTuple):
    """How one chain moves whose mass is a function of its position, so that nothing can be
    learnt."""

    init: Callable[..., Any]  # (key, position) -> state
    step: Callable[..., tuple[Any, Info]]  # (key, state) -> (state, info)


class Sampler(NamedTuple):
    """How an ensemble of chains moves."""

    init: Callable[..., Any]  # (key, positions) -> state
    step: Callable[..., tuple[Any, EnsembleInfo]]  # (key, state) -> (state, info)
    freeze: Callable[..., tuple[Any, Any]]  # (state) -> (sampler that learns no more, its state)
    learnt: Callable[
        ..., Learnt | None
    ]  # (state) -> what the chains move by; None if nothing is learnable
    is_settled: Any = None  # (state) -> whether warm-up may end; None: it has the length asked for
