"""Diagonal masses corrected in a few directions.

M_I = S (I + U (Lambda - I) U') S,      M = F F',      F = S^-1 (I + U (Lambda^-1/2 - I) U')
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from momentem.checks import as_floats, check_positive_entries, is_traced
from momentem.masses.dense import DenseMass
from momentem.masses.protocol import (
    Root,
    draw_momentum,
    fitted_variances,
    kinetic_energy,
    transport,
)
from momentem.types import Flag, Matrix, Scalar, Vector, Vectors

__all__ = ["LowRankMass", "low_rank_mass"]

# A direction that the window's draws see and its scores do not (or the reverse) has no finite
# answer; this much of the identity is added to both. Of 1e-5 … 1, 1e-2 kept cond(M_I P) lowest on
# Gaussians with ten outlying directions where the window is shorter than D, and costs little where
# it is not.
WINDOW_RIDGE = 1e-2


class LowRankMass(NamedTuple):
    """A diagonal corrected in `rank` directions: O(D rank) everything, no D x D array."""

    scale: Vector  # the diagonal of S
    directions: Float[Array, "rank dim"]  # U', orthonormal rows: as columns, five times slower
    eigenvalues: Float[Array, " rank"]  # the diagonal of Lambda

    sample = draw_momentum
    kinetic_energy = kinetic_energy
    transport = transport

    def _stretch(self, vector: Vector, by: Float[Array, " rank"]) -> Vector:
        """Return (I + U (diag(by) - I) U') x."""
        return vector + ((by - 1) * (self.directions @ vector)) @ self.directions

    def velocity(self, momentum: Vector) -> Vector:
        """Return M^-1 p."""
        return self.scale * self._stretch(self.scale * momentum, self.eigenvalues)

    def colour(self, whitened: Vector) -> Vector:
        """Return F y."""
        return self._stretch(whitened, 1 / jnp.sqrt(self.eigenvalues)) / self.scale

    def whiten(self, momentum: Vector) -> Vector:
        """Return F^-1 p."""
        return self._stretch(self.scale * momentum, jnp.sqrt(self.eigenvalues))

    def drift(self, whitened: Vector) -> Vector:
        """Return F^-T y."""
        return self.scale * self._stretch(whitened, jnp.sqrt(self.eigenvalues))

    def noise_matrix(self, noise: Vector) -> Vector:
        """Return the variances in the mass's own frame, which is taken to change little."""
        return noise

    def with_frame(self, noise_matrix: Vector) -> tuple["LowRankMass", Vector]:
        """Return the mass as it is, and the variances as they are."""
        return self, noise_matrix

    def log_determinant(self) -> Scalar:
        """Return log |M|."""
        return -2 * jnp.sum(jnp.log(self.scale)) - jnp.sum(jnp.log(self.eigenvalues))

    def average(self, estimate: "LowRankMass", rate: Scalar) -> "LowRankMass":
        """Return (1 - rate) M_I + rate M_I_est, brought back to the same rank.

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
        return LowRankMass(scale, *strongest(1 + excess, basis @ rotation, self.rank))

    def inverse_mass_diagonal(self) -> Vector:
        """Return the diagonal of M_I."""
        return self.scale**2 * (1 + (self.eigenvalues - 1) @ self.directions**2)

    def unfold(self, vector: Vector) -> Vector:
        """Return F' x, the inverse of `drift`."""
        return self._stretch(vector / self.scale, 1 / jnp.sqrt(self.eigenvalues))

    def with_variances(self, variances: Vector) -> "LowRankMass":
        """Return the mass of this structure with M_I = diag(variances)."""
        return LowRankMass(jnp.sqrt(variances), self.directions, jnp.ones_like(self.eigenvalues))

    def with_root(self, root: Root) -> "LowRankMass":
        """Return the mass of this structure whose diagonal fits M_I = R R' best."""
        return self.with_variances(fitted_variances(root))

    def condition_number(self) -> Scalar:
        """Return the largest over the smallest eigenvalue of M_I, each by 50 power iterations: a
        lower bound, a few per cent off."""

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

    @property
    def rank(self) -> int:
        """The number of directions that it corrects."""
        return len(self.eigenvalues)

    def from_window(self, draws: Vectors, scores: Vectors) -> "LowRankMass":
        """Return the mass of this rank that fits a window of draws and scores.

        Its diagonal S^2 is the geometric mean of the draws' variances and the inverse of the
        scores'. In that frame, draws and scores span a space of at most twice as many directions as
        there are draws. There the geometric mean of covariances is taken, and the `rank` directions
        farthest from 1 are kept.
        """
        draws = draws - jnp.mean(draws, axis=0, keepdims=True)
        scores = scores - jnp.mean(scores, axis=0, keepdims=True)
        scale = (jnp.sum(draws**2, axis=0) / jnp.sum(scores**2, axis=0)) ** 0.25
        root = (len(draws) - 1) ** 0.5
        draws, scores = draws / scale[None] / root, scores * scale[None] / root

        basis, _ = jnp.linalg.qr(jnp.concatenate([draws, scores]).T)
        identity = jnp.eye(basis.shape[1], dtype=scale.dtype)
        covariance, information = DenseMass.outer(draws @ basis), DenseMass.outer(scores @ basis)
        projected = DenseMass.geometric_mean_inverse(
            covariance + _ridge(covariance) * identity, information + _ridge(information) * identity
        )
        eigenvalues, vectors = jnp.linalg.eigh(projected)
        return LowRankMass(scale, *strongest(eigenvalues, basis @ vectors, self.rank))

    def is_proper(self) -> Flag:
        """Return whether M_I is finite and positive definite."""
        is_positive = jnp.all(self.scale > 0) & jnp.all(self.eigenvalues > 0)
        return is_positive & jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in self]))


def _ridge(matrix: Matrix) -> Scalar:
    """Return what is added to the diagonal: at least the matrix's own rounding errors."""
    return jnp.maximum(WINDOW_RIDGE, 4 * jnp.finfo(matrix.dtype).eps * jnp.trace(matrix))


def strongest(
    eigenvalues: Float[Array, " any"], vectors: Float[Array, "dim any"], rank: int
) -> tuple[Float[Array, "rank dim"], Float[Array, " rank"]]:
    """Return the `rank` eigenpairs farthest from 1 on the log scale: directions, eigenvalues."""
    chosen = jnp.argsort(-jnp.abs(jnp.log(eigenvalues)))[:rank]
    return vectors.T[chosen], eigenvalues[chosen]


def low_rank_mass(scale: ArrayLike, vectors: ArrayLike, eigenvalues: ArrayLike) -> LowRankMass:
    """Return a mass with M_I = S (I + U (Lambda - I) U') S, which never forms a D x D array.

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
    scale = as_floats("scale", scale, 1, "give the diagonal of S")
    vectors = as_floats("vectors", vectors, 2, "give one column per direction")
    eigenvalues = as_floats("eigenvalues", eigenvalues, 1, "give one number per direction")
    if vectors.shape != (len(scale), len(eigenvalues)):
        raise ValueError(
            f"vectors must have shape (len(scale), len(eigenvalues)) = "
            f"{(len(scale), len(eigenvalues))}, got {vectors.shape}"
        )
    check_positive_entries("scale", scale)
    check_positive_entries("eigenvalues", eigenvalues)
    if not is_traced(vectors):
        gram = np.asarray(vectors).T @ np.asarray(vectors)
        defect = float(np.abs(gram - np.eye(len(gram))).max())
        if defect > 100 * len(scale) * np.finfo(vectors.dtype).eps:
            raise ValueError(
                f"vectors must have orthonormal columns, U'U is off by {defect:g}; use "
                "jnp.linalg.qr"
            )
    return LowRankMass(scale, vectors.T, eigenvalues)
