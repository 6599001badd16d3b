"""What M-steps need of a mass, beyond how it acts (`momentem.types.Mass`).

    LearnableMass    can be averaged, started from variances, and hold a gradient noise in its frame
    MatrixMass       is learnt from second moments, summed in the mass's own structure
    WindowMass       is learnt from the last draws and scores themselves

A mass declares what it supports by having these members, and an M-step asks for the protocol it
needs: neither names the other. `momentem.testing.check_mass` checks all that a mass declares.

A mass is a NamedTuple of arrays, so that it can be carried through loops. Its class checks nothing,
because JAX rebuilds it inside its transformations: values are checked by a factory such as
`diagonal_mass`.
"""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from momentem.types import Count, Mass, PRNGKey, Scalar, Vector, Vectors

__all__ = [
    "LearnableMass",
    "MatrixMass",
    "Root",
    "WindowMass",
    "draw_momentum",
    "fitted_variances",
    "kinetic_energy",
    "transport",
]


Root = Float[Array, "dim any"]  # R with M_I = R R', not necessarily square


@runtime_checkable
class LearnableMass(Mass, Protocol):
    """What every M-step needs of a mass."""

    def average(self, estimate: Any, rate: Scalar) -> Any:
        """Return the mass with (1 - rate) M_I + rate M_I_est."""
        ...

    def with_variances(self, variances: Vector) -> Any:
        """Return the mass of this structure with M_I = diag(variances)."""
        ...

    def with_root(self, root: Root) -> Any:
        """Return the mass of this structure that fits M_I = R R' best."""
        ...

    def noise_matrix(self, noise: Vector) -> Array:
        """Return V = F diag(noise) F', in the mass's structure."""
        ...

    def with_frame(self, noise_matrix: Array) -> tuple[Any, Vector]:
        """Return the same mass with F turned to the eigenframe of V, and the variances of V
        there."""
        ...


@runtime_checkable
class MatrixMass(LearnableMass, Protocol):
    """A mass that is learnt from second moments.

    The methods below are an algebra of symmetric matrices in the mass's structure: for a diagonal
    mass, a matrix is the vector of its diagonal entries. `inverse_mass` is M_I in that structure.
    """

    @property
    def inverse_mass(self) -> Array:
        """M_I, in the mass's structure."""
        ...

    @property
    def degrees(self) -> int:
        """The number of coordinates that an entry of M_I depends on, as it appears in the bias of
        an inverted second moment."""
        ...

    def contract(self, matrix: Array) -> Scalar:
        """Return tr(M_I A)."""
        ...

    @staticmethod
    def from_inverse_mass(inverse_mass: Array) -> Any:
        """Return the mass with this M_I, unchecked."""
        ...

    def from_whitened(self, matrix: Array) -> Any:
        """Return the mass with M_I = F^-T A F^-1: the one that is A in the frame of this one."""
        ...

    @staticmethod
    def outer(vectors: Vectors) -> Array:
        """Return sum_i x_i x_i'."""
        ...

    @staticmethod
    def diagonal(entries: Vector) -> Array:
        """Return the diagonal matrix with these entries."""
        ...

    @staticmethod
    def inverse(matrix: Array) -> Array:
        """Return A^-1 of a positive definite A."""
        ...

    @staticmethod
    def geometric_mean_inverse(a: Array, b: Array) -> Array:
        """Return A # B^-1, the X with X B X = A."""
        ...

    @staticmethod
    def shrink(matrix: Array, count: Count, power: int) -> Array:
        """Return an estimate from `count` samples, made safe to invert."""
        ...


@runtime_checkable
class WindowMass(LearnableMass, Protocol):
    """A mass that is learnt from a window of draws and scores."""

    @property
    def rank(self) -> int:
        """The number of directions that it corrects; a window has at least twice as many draws."""
        ...

    def from_window(self, draws: Vectors, scores: Vectors) -> Any:
        """Return the mass that fits these draws and scores best."""
        ...


# Written once, in terms of the other members; a mass takes them over by assignment.


def fitted_variances(root: Root) -> Vector:
    """Return the variances of the diagonal Gaussian that fits M_I = R R' best: the geometric mean
    of the variances and of the conditional variances."""
    inverse = jnp.linalg.inv(jnp.linalg.qr(root.T, mode="r"))
    return jnp.sqrt(jnp.sum(root**2, axis=1) / jnp.sum(inverse**2, axis=1))


def draw_momentum(self: Any, key: PRNGKey) -> Vector:
    """Draw one momentum from N(0, M)."""
    diagonal = self.inverse_mass_diagonal()
    return self.colour(jax.random.normal(key, diagonal.shape, diagonal.dtype))


def kinetic_energy(self: Any, momentum: Vector) -> Scalar:
    """Return p' M^-1 p / 2."""
    return 0.5 * jnp.vdot(momentum, self.velocity(momentum))


def transport(self: Any, momentum: Vector, old: Mass) -> Vector:
    """Turn p ~ N(0, old) into a momentum of N(0, M): F F_old^-1 p."""
    return self.colour(old.whiten(momentum))
