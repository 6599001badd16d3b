"""Diagonal masses: M_I = diag(inverse_mass)."""

from typing import NamedTuple

import jax.numpy as jnp
from numpy.typing import ArrayLike

from momentem.checks import as_floats, check_positive_entries
from momentem.masses.protocol import (
    Root,
    draw_momentum,
    fitted_variances,
    kinetic_energy,
    transport,
)
from momentem.types import Count, Flag, Scalar, Vector, Vectors

__all__ = ["DiagonalMass", "diagonal_mass"]


class DiagonalMass(NamedTuple):
    """Independent coordinates: O(D) everything."""

    inverse_mass: Vector

    sample = draw_momentum
    kinetic_energy = kinetic_energy
    transport = transport

    def velocity(self, momentum: Vector) -> Vector:
        """Return M^-1 p."""
        return self.inverse_mass * momentum

    def colour(self, whitened: Vector) -> Vector:
        """Return M^1/2 y."""
        return whitened / jnp.sqrt(self.inverse_mass)

    def whiten(self, momentum: Vector) -> Vector:
        """Return M^-1/2 p."""
        return momentum * jnp.sqrt(self.inverse_mass)

    def drift(self, whitened: Vector) -> Vector:
        """Return M^-1/2 y."""
        return whitened * jnp.sqrt(self.inverse_mass)

    def noise_matrix(self, noise: Vector) -> Vector:
        """Return the diagonal of V."""
        return noise / self.inverse_mass

    def with_frame(self, noise_matrix: Vector) -> tuple["DiagonalMass", Vector]:
        """Return the mass as it is, and the variances of V in its frame."""
        return self, noise_matrix * self.inverse_mass

    def log_determinant(self) -> Scalar:
        """Return log |M|."""
        return -jnp.sum(jnp.log(self.inverse_mass))

    def average(self, estimate: "DiagonalMass", rate: Scalar) -> "DiagonalMass":
        """Return (1 - rate) M_I + rate M_I_est."""
        return DiagonalMass((1 - rate) * self.inverse_mass + rate * estimate.inverse_mass)

    def inverse_mass_diagonal(self) -> Vector:
        """Return the diagonal of M_I."""
        return self.inverse_mass

    def unfold(self, vector: Vector) -> Vector:
        """Return F' x, the inverse of `drift`."""
        return vector / jnp.sqrt(self.inverse_mass)

    def with_variances(self, variances: Vector) -> "DiagonalMass":
        """Return the mass of this structure with M_I = diag(variances)."""
        return DiagonalMass(variances)

    def with_root(self, root: Root) -> "DiagonalMass":
        """Return the mass of this structure that fits M_I = R R' best."""
        return DiagonalMass(fitted_variances(root))

    def from_whitened(self, matrix: Vector) -> "DiagonalMass":
        """Return the mass with M_I = F^-T A F^-1."""
        return DiagonalMass(self.inverse_mass * matrix)

    def condition_number(self) -> Scalar:
        """Return the largest over the smallest entry."""
        return jnp.max(self.inverse_mass) / jnp.min(self.inverse_mass)

    def is_proper(self) -> Flag:
        """Return whether M_I is finite and positive definite."""
        return jnp.all(jnp.isfinite(self.inverse_mass) & (self.inverse_mass > 0))

    @property
    def degrees(self) -> int:
        """The number of coordinates that an entry of M_I depends on."""
        return 1

    def contract(self, matrix: Vector) -> Scalar:
        """Return tr(M_I A)."""
        return jnp.vdot(self.inverse_mass, matrix)

    @staticmethod
    def from_inverse_mass(inverse_mass: Vector) -> "DiagonalMass":
        """Return the mass with this M_I, unchecked."""
        return DiagonalMass(inverse_mass)

    @staticmethod
    def outer(vectors: Vectors) -> Vector:
        """Return sum_i diag(x_i x_i')."""
        return jnp.sum(vectors**2, axis=0)

    @staticmethod
    def diagonal(entries: Vector) -> Vector:
        """Return the diagonal matrix with these entries."""
        return entries

    @staticmethod
    def inverse(matrix: Vector) -> Vector:
        """Return A^-1."""
        return 1 / matrix

    @staticmethod
    def geometric_mean_inverse(a: Vector, b: Vector) -> Vector:
        """Return A # B^-1 = sqrt(A / B)."""
        return jnp.sqrt(a / b)

    @staticmethod
    def shrink(matrix: Vector, count: Count, power: int) -> Vector:
        """Return A: variances alone need no shrinking."""
        del count, power
        return matrix


def diagonal_mass(inverse_mass: ArrayLike) -> DiagonalMass:
    """Return a diagonal mass, given the diagonal of M_I = M^-1.

    Args:
        inverse_mass: D positive numbers; posterior variances are a good choice.

    Examples:
        >>> import jax.numpy as jnp
        >>> diagonal_mass(jnp.array([1.0, 4.0])).velocity(jnp.array([1.0, 1.0])).tolist()
        [1.0, 4.0]
    """
    array = as_floats("inverse_mass", inverse_mass, 1, "give the diagonal alone, or use dense_mass")
    check_positive_entries("inverse_mass", array)
    return DiagonalMass(array)
