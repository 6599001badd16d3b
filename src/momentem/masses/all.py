"""How a mass acts. Every mass holds its inverse M_I = M^-1, the matrix that EM averages.

    DiagonalMass   M_I = diag(inverse_mass)
    DenseMass      M_I = inverse_mass,                        M = F F',  F = L^-T with M_I = L L'
    LowRankMass    M_I = S (I + U (Lambda - I) U') S,      M = F F',
                                                           F = S^-1 (I + U (Lambda^-1/2 - I) U')

A mass is a NamedTuple of arrays, so it rides in a scan carry. Masses are built and checked by
`diagonal_mass`, `dense_mass` and `low_rank_mass`; the classes themselves check nothing, because JAX
rebuilds them inside its transformations.

The static methods of DiagonalMass and DenseMass are the algebra that M-steps need of symmetric
matrices, where a diagonal matrix is the vector of its entries.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from momentem.checks import is_traced
from momentem.types import Count, Flag, Mass, Matrix, PRNGKey, Scalar, Vector, Vectors

__all__ = [
    "DenseMass",
    "DiagonalMass",
    "LowRankMass",
    "dense_mass",
    "diagonal_mass",
    "low_rank_mass",
]


def _sample(self: Any, key: PRNGKey) -> Vector:
    diagonal = self.inverse_mass_diagonal()
    return self.colour(jax.random.normal(key, diagonal.shape, diagonal.dtype))


def _kinetic_energy(self: Any, momentum: Vector) -> Scalar:
    return 0.5 * jnp.vdot(momentum, self.velocity(momentum))


def _transport(self: Any, momentum: Vector, old: Mass) -> Vector:
    return self.colour(old.whiten(momentum))


class DiagonalMass(NamedTuple):
    """Independent coordinates: O(D) everything."""

    inverse_mass: Vector

    sample = _sample
    kinetic_energy = _kinetic_energy
    transport = _transport

    def velocity(self, momentum: Vector) -> Vector:
        """M^-1 p."""
        return self.inverse_mass * momentum

    def colour(self, whitened: Vector) -> Vector:
        """M^1/2 y."""
        return whitened / jnp.sqrt(self.inverse_mass)

    def whiten(self, momentum: Vector) -> Vector:
        """M^-1/2 p."""
        return momentum * jnp.sqrt(self.inverse_mass)

    def drift(self, whitened: Vector) -> Vector:
        """M^-1/2 y."""
        return whitened * jnp.sqrt(self.inverse_mass)

    def noise_matrix(self, noise: Vector) -> Vector:
        """The diagonal of V."""
        return noise / self.inverse_mass

    def framed(self, noise_matrix: Vector) -> tuple["DiagonalMass", Vector]:
        """The mass as it is, and the variances of V in its frame."""
        return self, noise_matrix * self.inverse_mass

    def log_determinant(self) -> Scalar:
        """log |M|."""
        return -jnp.sum(jnp.log(self.inverse_mass))

    def average(self, estimate: "DiagonalMass", rate: Scalar) -> "DiagonalMass":
        """(1 - rate) M_I + rate M_I_est."""
        return DiagonalMass((1 - rate) * self.inverse_mass + rate * estimate.inverse_mass)

    def inverse_mass_diagonal(self) -> Vector:
        """The diagonal of M_I."""
        return self.inverse_mass

    def unfold(self, vector: Vector) -> Vector:
        """F' x, the inverse of `drift`."""
        return vector / jnp.sqrt(self.inverse_mass)

    def with_variances(self, variances: Vector) -> "DiagonalMass":
        """The mass of this structure with M_I = diag(variances)."""
        return DiagonalMass(variances)

    def condition_number(self) -> Scalar:
        """Largest over smallest entry."""
        return jnp.max(self.inverse_mass) / jnp.min(self.inverse_mass)

    def is_proper(self) -> Flag:
        """Whether M_I is finite and positive definite."""
        return jnp.all(jnp.isfinite(self.inverse_mass) & (self.inverse_mass > 0))

    @property
    def degrees(self) -> int:
        """How many coordinates an entry of M_I depends on, as counted in the bias of an inverse."""
        return 1

    @staticmethod
    def from_inverse_mass(inverse_mass: Vector) -> "DiagonalMass":
        """The mass with this M_I, unchecked."""
        return DiagonalMass(inverse_mass)

    @staticmethod
    def outer(vectors: Vectors) -> Vector:
        """sum_i diag(x_i x_i')."""
        return jnp.sum(vectors**2, axis=0)

    @staticmethod
    def diagonal(entries: Vector) -> Vector:
        """The diagonal matrix with these entries."""
        return entries

    @staticmethod
    def inverse(matrix: Vector) -> Vector:
        """A^-1."""
        return 1 / matrix

    @staticmethod
    def geometric_mean_inverse(a: Vector, b: Vector) -> Vector:
        """A # B^-1 = sqrt(A / B)."""
        return jnp.sqrt(a / b)

    @staticmethod
    def shrink(matrix: Vector, count: Count, power: int) -> Vector:
        """A: variances alone need no shrinking."""
        del count, power
        return matrix


def times(matrix: Matrix, vector: Vector) -> Vector:
    """A x. A small product is written as a sum, which compiles into its neighbours; as a call of a
    matrix library it costs several times its arithmetic."""
    return matrix @ vector if len(vector) > 32 else jnp.sum(matrix * vector[None], axis=1)


class DenseMass(NamedTuple):
    """All correlations: O(D^2) to act, O(D^3) to build."""

    inverse_mass: Matrix
    factor: Matrix  # F, with F F' = M
    root: Matrix  # F^-T, with F^-T F^-1 = M_I

    sample = _sample
    kinetic_energy = _kinetic_energy
    transport = _transport

    def velocity(self, momentum: Vector) -> Vector:
        """M^-1 p."""
        return times(self.inverse_mass, momentum)

    def colour(self, whitened: Vector) -> Vector:
        """F y."""
        return times(self.factor, whitened)

    def whiten(self, momentum: Vector) -> Vector:
        """F^-1 p."""
        return times(self.root.T, momentum)

    def drift(self, whitened: Vector) -> Vector:
        """F^-T y."""
        return times(self.root, whitened)

    def noise_matrix(self, noise: Vector) -> Matrix:
        """V = F diag(noise) F'."""
        return (self.factor * noise[None]) @ self.factor.T

    def framed(self, noise_matrix: Matrix) -> tuple["DenseMass", Vector]:
        """F turned to the eigenvectors of F^-1 V F^-T, and its eigenvalues."""
        noise, turn = jnp.linalg.eigh(self.root.T @ noise_matrix @ self.root)
        turned = DenseMass(self.inverse_mass, self.factor @ turn, self.root @ turn)
        return turned, jnp.maximum(noise, 0)

    def log_determinant(self) -> Scalar:
        """log |M|."""
        return -jnp.linalg.slogdet(self.inverse_mass)[1]

    def average(self, estimate: "DenseMass", rate: Scalar) -> "DenseMass":
        """(1 - rate) M_I + rate M_I_est, factored anew."""
        return DenseMass.from_inverse_mass(
            (1 - rate) * self.inverse_mass + rate * estimate.inverse_mass
        )

    def inverse_mass_diagonal(self) -> Vector:
        """The diagonal of M_I."""
        return jnp.diagonal(self.inverse_mass)

    def unfold(self, vector: Vector) -> Vector:
        """F' x, the inverse of `drift`."""
        return times(self.factor.T, vector)

    def with_variances(self, variances: Vector) -> "DenseMass":
        """The mass of this structure with M_I = diag(variances)."""
        return DenseMass.from_inverse_mass(jnp.diag(variances))

    def condition_number(self) -> Scalar:
        """Largest over smallest eigenvalue."""
        eigenvalues = jnp.linalg.eigvalsh(self.inverse_mass)
        return eigenvalues[-1] / eigenvalues[0]

    def is_proper(self) -> Flag:
        """Whether M_I is finite and positive definite (else its Cholesky factor holds NaN)."""
        return jnp.all(jnp.isfinite(self.inverse_mass)) & jnp.all(jnp.isfinite(self.factor))

    @property
    def degrees(self) -> int:
        """How many coordinates an entry of M_I depends on, as counted in the bias of an inverse."""
        return self.inverse_mass.shape[-1]

    @staticmethod
    def from_inverse_mass(inverse_mass: Matrix) -> "DenseMass":
        """The mass with this M_I, unchecked; NaN in the factor if it is not positive definite."""
        cholesky = jnp.linalg.cholesky(inverse_mass)
        identity = jnp.eye(inverse_mass.shape[-1], dtype=inverse_mass.dtype)
        factor = solve_triangular(cholesky, identity, lower=True).T
        return DenseMass(inverse_mass, factor, cholesky)

    @staticmethod
    def outer(vectors: Vectors) -> Matrix:
        """sum_i x_i x_i'."""
        return vectors.T @ vectors

    @staticmethod
    def diagonal(entries: Vector) -> Matrix:
        """The diagonal matrix with these entries."""
        return jnp.diag(entries)

    @staticmethod
    def inverse(matrix: Matrix) -> Matrix:
        """A^-1 of a positive definite A."""
        return jax.scipy.linalg.cho_solve(
            (jnp.linalg.cholesky(matrix), True), jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
        )

    @staticmethod
    def geometric_mean_inverse(a: Matrix, b: Matrix) -> Matrix:
        """A # B^-1 = L (L' B L)^-1/2 L' with A = L L': the X with X B X = A."""
        cholesky = jnp.linalg.cholesky(a)
        eigenvalues, vectors = jnp.linalg.eigh(cholesky.T @ b @ cholesky)
        root = cholesky @ vectors
        return (root / jnp.sqrt(eigenvalues)[None]) @ root.T

    @staticmethod
    def shrink(matrix: Matrix, count: Count, power: int) -> Matrix:
        """A drawn towards its own diagonal: scale-free, and positive definite for any count >= 2.

        The weight w = r / (1 + r), r = (D/n)^power, is a heuristic. The noise of correlations is of
        order sqrt(D/n): w vanishes faster, so that it biases nothing once n >> D, and leaves little
        but the variances where n << D.
        """
        ratio = (matrix.shape[-1] / count.astype(matrix.dtype)) ** power
        weight = ratio / (1 + ratio)
        return (1 - weight) * matrix + weight * jnp.diag(jnp.diagonal(matrix))


class LowRankMass(NamedTuple):
    """A diagonal corrected in `rank` directions: O(D rank) everything, no D x D array."""

    scale: Vector  # the diagonal of S
    directions: Float[Array, "rank dim"]  # U', orthonormal rows: as columns, five times slower
    eigenvalues: Float[Array, " rank"]  # the diagonal of Lambda

    sample = _sample
    kinetic_energy = _kinetic_energy
    transport = _transport

    def _stretch(self, vector: Vector, by: Float[Array, " rank"]) -> Vector:
        """(I + U (diag(by) - I) U') x."""
        return vector + ((by - 1) * (self.directions @ vector)) @ self.directions

    def velocity(self, momentum: Vector) -> Vector:
        """M^-1 p."""
        return self.scale * self._stretch(self.scale * momentum, self.eigenvalues)

    def colour(self, whitened: Vector) -> Vector:
        """F y."""
        return self._stretch(whitened, 1 / jnp.sqrt(self.eigenvalues)) / self.scale

    def whiten(self, momentum: Vector) -> Vector:
        """F^-1 p."""
        return self._stretch(self.scale * momentum, jnp.sqrt(self.eigenvalues))

    def drift(self, whitened: Vector) -> Vector:
        """F^-T y."""
        return self.scale * self._stretch(whitened, jnp.sqrt(self.eigenvalues))

    def noise_matrix(self, noise: Vector) -> Vector:
        """The variances in the mass's own frame, which is taken to change little."""
        return noise

    def framed(self, noise_matrix: Vector) -> tuple["LowRankMass", Vector]:
        """The mass as it is, and the variances as they are."""
        return self, noise_matrix

    def log_determinant(self) -> Scalar:
        """log |M|."""
        return -2 * jnp.sum(jnp.log(self.scale)) - jnp.sum(jnp.log(self.eigenvalues))

    def average(self, estimate: "LowRankMass", rate: Scalar) -> "LowRankMass":
        """(1 - rate) M_I + rate M_I_est, brought back to the same rank.

        The sum is S (I + W K W') S with S^2 the averaged diagonals and W the 2 rank directions of
        both; of its eigenvalues the `rank` farthest from 1 (on the log scale) are kept.
        """
        scale = jnp.sqrt((1 - rate) * self.scale**2 + rate * estimate.scale**2)
        ours = (self.scale / scale)[:, None] * self.directions.T
        theirs = (estimate.scale / scale)[:, None] * estimate.directions.T
        weights = jnp.concatenate(
            [(1 - rate) * (self.eigenvalues - 1), rate * (estimate.eigenvalues - 1)]
        )
        basis, triangle = jnp.linalg.qr(jnp.concatenate([ours, theirs], axis=1))
        excess, rotation = jnp.linalg.eigh((triangle * weights[None]) @ triangle.T)
        return LowRankMass(
            scale, *strongest(1 + excess, basis @ rotation, rank=len(self.eigenvalues))
        )

    def inverse_mass_diagonal(self) -> Vector:
        """The diagonal of M_I."""
        return self.scale**2 * (1 + (self.eigenvalues - 1) @ self.directions**2)

    def unfold(self, vector: Vector) -> Vector:
        """F' x, the inverse of `drift`."""
        return self._stretch(vector / self.scale, 1 / jnp.sqrt(self.eigenvalues))

    def with_variances(self, variances: Vector) -> "LowRankMass":
        """The mass of this structure with M_I = diag(variances)."""
        return LowRankMass(jnp.sqrt(variances), self.directions, jnp.ones_like(self.eigenvalues))

    def condition_number(self) -> Scalar:
        """Largest over smallest eigenvalue, by 50 power iterations each: a lower bound, a few %
        off."""

        def largest(act: Any) -> Scalar:
            def iterate(_: Any, x: Vector) -> Vector:
                y = act(x)
                return y / jnp.linalg.norm(y)

            # any start will do that is not orthogonal to the eigenvector sought
            start = jax.random.normal(jax.random.key(0), self.scale.shape, self.scale.dtype)
            return jnp.vdot(x := jax.lax.fori_loop(0, 50, iterate, start), act(x))

        def mass(x: Vector) -> Vector:
            return self._stretch(x / self.scale, 1 / self.eigenvalues) / self.scale

        return largest(self.velocity) * largest(mass)

    def is_proper(self) -> Flag:
        """Whether M_I is finite and positive definite."""
        is_positive = jnp.all(self.scale > 0) & jnp.all(self.eigenvalues > 0)
        return is_positive & jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in self]))


def strongest(
    eigenvalues: Float[Array, " any"], vectors: Float[Array, "dim any"], rank: int
) -> tuple[Float[Array, "rank dim"], Float[Array, " rank"]]:
    """The `rank` eigenpairs farthest from 1 on the log scale, as (directions, eigenvalues)."""
    chosen = jnp.argsort(-jnp.abs(jnp.log(eigenvalues)))[:rank]
    return vectors.T[chosen], eigenvalues[chosen]


def _floats(name: str, value: ArrayLike, ndim: int, remedy: str) -> Array:
    """`value` as a floating array of `ndim` axes, or an error that says what is wrong with it."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must hold floating-point numbers, got dtype {array.dtype}")
    if array.ndim != ndim or 0 in array.shape:
        raise ValueError(f"{name} must have {ndim} axes, got shape {array.shape}; {remedy}")
    if not is_traced(array) and not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name} must be finite, got {array[where]} at index {where}")
    return array


def _positive(name: str, array: Array) -> None:
    if not is_traced(array) and (np.asarray(array) <= 0).any():
        worst = int(np.argmin(array))
        raise ValueError(
            f"{name} must be positive: entry {worst} of {len(array)} is {float(array[worst]):g}"
        )


def diagonal_mass(inverse_mass: ArrayLike) -> DiagonalMass:
    """A diagonal mass from the diagonal of M_I = M^-1 (posterior variances are a good choice).

    Args:
        inverse_mass: D positive numbers.

    Examples:
        >>> import jax.numpy as jnp
        >>> diagonal_mass(jnp.array([1.0, 4.0])).velocity(jnp.array([1.0, 1.0])).tolist()
        [1.0, 4.0]
    """
    array = _floats("inverse_mass", inverse_mass, 1, "give the diagonal alone, or use dense_mass")
    _positive("inverse_mass", array)
    return DiagonalMass(array)


def dense_mass(inverse_mass: ArrayLike) -> DenseMass:
    """A dense mass from M_I = M^-1 (the posterior covariance is a good choice).

    Args:
        inverse_mass: a symmetric positive definite D x D matrix.

    Examples:
        >>> import jax.numpy as jnp
        >>> mass = dense_mass(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
        >>> mass.velocity(jnp.array([1.0, 0.0])).tolist()
        [2.0, 1.0]
    """
    array = _floats("inverse_mass", inverse_mass, 2, "use diagonal_mass for a vector")
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


def low_rank_mass(scale: ArrayLike, vectors: ArrayLike, eigenvalues: ArrayLike) -> LowRankMass:
    """A mass with M_I = S (I + U (Lambda - I) U') S, which never forms a D x D array.

    Args:
        scale: the D positive entries of the diagonal S (posterior standard deviations).
        vectors: U, D x rank, with orthonormal columns.
        eigenvalues: the `rank` positive entries of the diagonal Lambda; 1 leaves a direction alone.

    Examples:
        >>> import jax.numpy as jnp
        >>> mass = low_rank_mass(jnp.ones(3), jnp.eye(3)[:, :1], jnp.array([9.0]))
        >>> mass.velocity(jnp.ones(3)).tolist()
        [9.0, 1.0, 1.0]
    """
    scale = _floats("scale", scale, 1, "give the diagonal of S")
    vectors = _floats("vectors", vectors, 2, "give one column per direction")
    eigenvalues = _floats("eigenvalues", eigenvalues, 1, "give one number per direction")
    if vectors.shape != (len(scale), len(eigenvalues)):
        raise ValueError(
            f"vectors must have shape (len(scale), len(eigenvalues)) = "
            f"{(len(scale), len(eigenvalues))}, got {vectors.shape}"
        )
    _positive("scale", scale)
    _positive("eigenvalues", eigenvalues)
    if not is_traced(vectors):
        gram = np.asarray(vectors).T @ np.asarray(vectors)
        defect = float(np.abs(gram - np.eye(len(gram))).max())
        if defect > 100 * len(scale) * np.finfo(vectors.dtype).eps:
            raise ValueError(
                f"vectors must have orthonormal columns, U'U is off by {defect:g}; use "
                "jnp.linalg.qr"
            )
    return LowRankMass(scale, vectors.T, eigenvalues)
