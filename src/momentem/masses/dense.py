"""Dense masses: M_I = inverse_mass = L L', M = F F' with F = L^-T."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from numpy.typing import ArrayLike

from momentem.checks import as_floats, is_traced
from momentem.masses.protocol import Root, draw_momentum, kinetic_energy, transport
from momentem.types import Count, Flag, Matrix, Scalar, Vector, Vectors

__all__ = ["DenseMass", "dense_mass", "times"]


def times(matrix: Matrix, vector: Vector) -> Vector:
    """Return A x. A small product is written as a sum, which XLA merges with its neighbours; a call
    of a matrix library would cost several times its arithmetic."""
    return matrix @ vector if len(vector) > 32 else jnp.sum(matrix * vector[None], axis=1)


class DenseMass(NamedTuple):
    """All correlations: O(D^2) to act, O(D^3) to build."""

    inverse_mass: Matrix
    factor: Matrix  # F, with F F' = M
    root: Matrix  # F^-T, with F^-T F^-1 = M_I

    sample = draw_momentum
    kinetic_energy = kinetic_energy
    transport = transport

    def velocity(self, momentum: Vector) -> Vector:
        """Return M^-1 p."""
        return times(self.inverse_mass, momentum)

    def colour(self, whitened: Vector) -> Vector:
        """Return F y."""
        return times(self.factor, whitened)

    def whiten(self, momentum: Vector) -> Vector:
        """Return F^-1 p."""
        return times(self.root.T, momentum)

    def drift(self, whitened: Vector) -> Vector:
        """Return F^-T y."""
        return times(self.root, whitened)

    def noise_matrix(self, noise: Vector) -> Matrix:
        """Return V = F diag(noise) F'."""
        return (self.factor * noise[None]) @ self.factor.T

    def with_frame(self, noise_matrix: Matrix) -> tuple["DenseMass", Vector]:
        """Return the mass with F turned to the eigenvectors of F^-1 V F^-T, and the eigenvalues."""
        noise, turn = jnp.linalg.eigh(self.root.T @ noise_matrix @ self.root)
        turned = DenseMass(self.inverse_mass, self.factor @ turn, self.root @ turn)
        return turned, jnp.maximum(noise, 0)

    def log_determinant(self) -> Scalar:
        """Return log |M|."""
        return -jnp.linalg.slogdet(self.inverse_mass)[1]

    def average(self, estimate: "DenseMass", rate: Scalar) -> "DenseMass":
        """Return (1 - rate) M_I + rate M_I_est."""
        roots = jnp.sqrt(1 - rate) * self.root, jnp.sqrt(rate) * estimate.root
        return DenseMass.from_root(jnp.concatenate(roots, axis=1))

    def inverse_mass_diagonal(self) -> Vector:
        """Return the diagonal of M_I."""
        return jnp.diagonal(self.inverse_mass)

    def unfold(self, vector: Vector) -> Vector:
        """Return F' x, the inverse of `drift`."""
        return times(self.factor.T, vector)

    def with_variances(self, variances: Vector) -> "DenseMass":
        """Return the mass of this structure with M_I = diag(variances)."""
        return DenseMass.from_inverse_mass(jnp.diag(variances))

    def with_root(self, root: Root) -> "DenseMass":
        """Return the mass of this structure with M_I = R R'."""
        return DenseMass.from_root(root)

    def from_whitened(self, matrix: Matrix) -> "DenseMass":
        """Return the mass with M_I = F^-T A F^-1, from the factors of both."""
        return DenseMass.from_root(self.root @ jnp.linalg.cholesky(matrix))

    def condition_number(self) -> Scalar:
        """Return the largest over the smallest eigenvalue of M_I."""
        singular = jnp.linalg.svdvals(self.root)
        return (singular[0] / singular[-1]) ** 2

    def is_proper(self) -> Flag:
        """Return whether M_I is finite and positive definite; if not, its factor holds NaN."""
        return jnp.all(jnp.isfinite(self.inverse_mass)) & jnp.all(jnp.isfinite(self.factor))

    @property
    def degrees(self) -> int:
        """The number of coordinates that an entry of M_I depends on."""
        return self.inverse_mass.shape[-1]

    def contract(self, matrix: Matrix) -> Scalar:
        """Return tr(M_I A)."""
        return jnp.vdot(self.inverse_mass, matrix)

    @staticmethod
    def from_inverse_mass(inverse_mass: Matrix) -> "DenseMass":
        """Return the mass with this M_I, unchecked. If it is not positive definite, the factor is
        NaN."""
        return DenseMass.from_cholesky(inverse_mass, jnp.linalg.cholesky(inverse_mass))

    @staticmethod
    def from_root(root: Root) -> "DenseMass":
        """Return the mass with M_I = R R', unchecked. R R' is not factored, because its condition
        number is the square of that of R."""
        triangle = jnp.linalg.qr(root.T, mode="r")
        cholesky = (triangle * jnp.sign(jnp.diagonal(triangle))[:, None]).T
        return DenseMass.from_cholesky(cholesky @ cholesky.T, cholesky)

    @staticmethod
    def from_cholesky(inverse_mass: Matrix, cholesky: Matrix) -> "DenseMass":
        """Return the mass with this M_I, given its Cholesky factor."""
        identity = jnp.eye(inverse_mass.shape[-1], dtype=inverse_mass.dtype)
        factor = solve_triangular(cholesky, identity, lower=True).T
        return DenseMass(inverse_mass, factor, cholesky)

    @staticmethod
    def outer(vectors: Vectors) -> Matrix:
        """Return sum_i x_i x_i'."""
        return vectors.T @ vectors

    @staticmethod
    def diagonal(entries: Vector) -> Matrix:
        """Return the diagonal matrix with these entries."""
        return jnp.diag(entries)

    @staticmethod
    def inverse(matrix: Matrix) -> Matrix:
        """Return A^-1 of a positive definite A."""
        return jax.scipy.linalg.cho_solve(
            (jnp.linalg.cholesky(matrix), True), jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
        )

    @staticmethod
    def geometric_mean_inverse(a: Matrix, b: Matrix) -> Matrix:
        """Return A # B^-1 = L (L' B L)^-1/2 L' with A = L L': the X with X B X = A."""
        cholesky = jnp.linalg.cholesky(a)
        eigenvalues, vectors = jnp.linalg.eigh(cholesky.T @ b @ cholesky)
        root = cholesky @ vectors
        return (root / jnp.sqrt(eigenvalues)[None]) @ root.T

    @staticmethod
    def shrink(matrix: Matrix, count: Count, power: int) -> Matrix:
        """Return A shrunk towards its own diagonal, which is positive definite for any count >= 2.

        The weight w = r / (1 + r), r = (D/n)^power, is a heuristic. The noise of correlations is of
        order sqrt(D/n): w vanishes faster, so that it biases nothing once n >> D, and leaves little
        but the variances where n << D.
        """
        ratio = (matrix.shape[-1] / count.astype(matrix.dtype)) ** power
        weight = ratio / (1 + ratio)
        return (1 - weight) * matrix + weight * jnp.diag(jnp.diagonal(matrix))


def dense_mass(inverse_mass: ArrayLike) -> DenseMass:
    """Return a dense mass, given M_I = M^-1.

    Args:
        inverse_mass: a symmetric positive definite D x D matrix; the posterior covariance is a
            good choice.

    Examples:
        >>> import jax.numpy as jnp
        >>> mass = dense_mass(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
        >>> mass.velocity(jnp.array([1.0, 0.0])).tolist()
        [2.0, 1.0]
    """
    array = as_floats("inverse_mass", inverse_mass, 2, "use diagonal_mass for a vector")
    if array.shape[0] != array.shape[1]:
        raise ValueError(f"inverse_mass must be square, got shape {array.shape}")
    if not is_traced(array):
        skew = float(np.abs(array - array.T).max())
        if skew > 1e-6 * float(np.abs(array).max()):
            raise ValueError(
                f"inverse_mass must be symmetric, differs from its transpose by {skew:g}; use (A + "
                "A.T) / 2"
            )
        eigenvalues = np.linalg.eigvalsh(np.asarray(array))
        scales = np.sqrt(np.abs(np.diagonal(array)) + (np.diagonal(array) == 0))
        correlations = np.linalg.eigvalsh(np.asarray(array) / np.outer(scales, scales))
        # scales apart, a Cholesky factorisation in the array's own precision fails below this
        if eigenvalues[0] <= 0 or correlations[0] <= len(array) * np.finfo(array.dtype).eps:
            raise ValueError(
                f"inverse_mass must be positive definite: eigenvalue 0 of {len(array)} is "
                f"{eigenvalues[0]:g} (the largest is {eigenvalues[-1]:g})"
            )
    return DenseMass.from_inverse_mass(array)
