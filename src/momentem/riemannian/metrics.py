"""Metrics: masses that depend on the position of the chain, M = G(theta).

A metric is a function from the unconstrained position to a positive definite matrix, or to the
diagonal of one. Riemannian kernels need three things of it at every point. Each takes one pass of
automatic differentiation, not D of them:

    G(theta), its Cholesky factor L and log |G|
    grad log |G|          the pullback of G^-1 through theta -> G(theta)
    grad (v' G(theta) v)  with v fixed: the gradient of `quadratic`, which for the information of N
                          data costs O(N D), where G itself costs O(N D^2)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike

from momentem.checks import check_callable, check_positive
from momentem.pytrees import as_partial
from momentem.targets._minibatch import AnyTarget
from momentem.types import Matrix, Scalar, Vector

__all__ = ["Metric", "diagonal", "exponential_family", "logistic", "metric", "softabs"]


class Metric(NamedTuple):
    """A positive definite matrix at every position."""

    matrix: Callable[[Vector], Array]  # G(theta), D x D, or its diagonal, D
    quadratic: Callable[[Vector, Vector], Scalar]  # (theta, v) -> v' G(theta) v


class DiagonalFactor(NamedTuple):
    """The factor of a diagonal G at one point."""

    root: Vector

    def velocity(self, momentum: Vector) -> Vector:
        """Return G^-1 p."""
        return momentum / self.root**2

    def colour(self, whitened: Vector) -> Vector:
        """Return L y."""
        return self.root * whitened

    def whiten(self, momentum: Vector) -> Vector:
        """Return L^-1 p."""
        return momentum / self.root

    def inverse(self) -> Vector:
        """Return G^-1."""
        return 1 / self.root**2

    def log_determinant(self) -> Scalar:
        """Return log |G|."""
        return 2 * jnp.sum(jnp.log(self.root))


class DenseFactor(NamedTuple):
    """The Cholesky factor L of G = L L' at one point."""

    root: Matrix

    def velocity(self, momentum: Vector) -> Vector:
        """Return G^-1 p."""
        return solve_triangular(self.root, self.whiten(momentum), lower=True, trans=1)

    def colour(self, whitened: Vector) -> Vector:
        """Return L y."""
        return self.root @ whitened

    def whiten(self, momentum: Vector) -> Vector:
        """Return L^-1 p."""
        return solve_triangular(self.root, momentum, lower=True)

    def inverse(self) -> Matrix:
        """Return G^-1."""
        identity = jnp.eye(len(self.root), dtype=self.root.dtype)
        inverse_root = solve_triangular(self.root, identity, lower=True)
        return inverse_root.T @ inverse_root

    def log_determinant(self) -> Scalar:
        """Return log |G|."""
        return 2 * jnp.sum(jnp.log(jnp.diagonal(self.root)))


Factor = DiagonalFactor | DenseFactor


def factorise(matrix: Array) -> Factor:
    """Return the factor of G.

    It is NaN, which kernels count as a divergence, if G is not positive definite.
    """
    if matrix.ndim == 1:
        return DiagonalFactor(jnp.sqrt(matrix))
    return DenseFactor(jnp.linalg.cholesky(matrix))


def metric(
    matrix: Callable[[Vector], Array],
    quadratic: Callable[[Vector, Vector], Scalar] | None = None,
) -> Metric:
    """Build a metric from a function of your own.

    Args:
        matrix: maps an unconstrained position to G(theta), D x D and positive definite, or to the D
            entries of a diagonal G.
        quadratic: maps (theta, v) to v' G(theta) v. Give it if it is cheaper than the matrix.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> funnel = mt.metrics.metric(lambda x: jnp.stack([1.0 + 0 * x[0], jnp.exp(-x[0])]))
        >>> funnel.matrix(jnp.zeros(2)).tolist()
        [1.0, 1.0]
    """
    check_callable(matrix=matrix)
    if quadratic is None:
        return Metric(as_partial(matrix), Partial(_quadratic_of_matrix, as_partial(matrix)))
    check_callable(quadratic=quadratic)
    return Metric(as_partial(matrix), as_partial(quadratic))


def exponential_family(
    natural: Callable[[Vector, Any], Array],
    log_partition: Callable[[Array], Scalar],
    data: Any,
    prior: Callable[[Vector], Array] | ArrayLike,
    scale: float = 1.0,
) -> Metric:
    """Build a metric: Fisher information of exponential-family data plus curvature of the prior.

        G(theta) = scale sum_i J_i' (hess A)(eta_i) J_i + prior(theta)

    with eta_i = natural(theta, datum_i), J_i its Jacobian, and A the log partition function.

    Args:
        natural: maps (unconstrained position, datum) to natural parameters.
        log_partition: A, a function of the natural parameters.
        data: a pytree of arrays with a shared leading axis. It needs the covariates only: a Fisher
            information does not depend on the responses.
        prior: -hess log prior as D entries or D x D, or a function of the position that returns it.
        scale: N/m if `data` is a sample of m of the N rows: any positive definite metric is exact.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> natural, rows = lambda w, x: x @ w, jnp.array([[1.0, 2.0], [0.0, 1.0]])
        >>> metric = mt.metrics.exponential_family(natural, jax.nn.softplus, rows, jnp.ones(2))
        >>> metric.matrix(jnp.zeros(2)).tolist()
        [[1.25, 0.5], [0.5, 2.25]]
    """
    check_callable(natural=natural, log_partition=log_partition)
    check_positive(scale=scale)
    data = jax.tree.map(jnp.asarray, data)
    curvature = as_partial(prior) if callable(prior) else Partial(_constant, jnp.asarray(prior))
    parts = (as_partial(natural), as_partial(log_partition), data, curvature, scale)
    return Metric(Partial(_information, *parts), Partial(_information_quadratic, *parts))


def logistic(x: ArrayLike, prior: ArrayLike, scale: float = 1.0) -> Metric:
    """Build the metric of a logistic regression: X' diag(w (1 - w)) X + prior precision.

    Args:
        x: the covariates, one row per datum.
        prior: the prior's precision, D entries or D x D.
        scale: as for `exponential_family`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> metric = mt.metrics.logistic(jnp.array([[1.0, 2.0], [0.0, 1.0]]), prior=jnp.ones(2))
        >>> metric.matrix(jnp.zeros(2)).tolist()
        [[1.25, 0.5], [0.5, 2.25]]
    """
    check_positive(scale=scale)
    parts = (jnp.asarray(x), jnp.asarray(prior), scale)
    return Metric(Partial(_logistic, *parts), Partial(_logistic_quadratic, *parts))


def softabs(target: AnyTarget, sharpness: float = 1e6) -> Metric:
    """Build a metric from a negative Hessian, with eigenvalues made positive (Betancourt 2013).

        G = U diag(lambda coth(sharpness lambda)) U',     -hess L = U diag(lambda) U'

    Args:
        target: the density to sample.
        sharpness: eigenvalues smaller in size than its inverse count as its inverse.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: x[0] ** 2 - x[1] ** 2, initial=jnp.zeros(2))
        >>> mt.metrics.softabs(target).matrix(jnp.zeros(2)).round(3).tolist()
        [[2.0, 0.0], [0.0, 2.0]]
    """
    check_positive(sharpness=sharpness)
    matrix = Partial(_softabs_of_hessian, target.logdensity, sharpness)
    return Metric(matrix, Partial(_quadratic_of_matrix, matrix))


def diagonal(full: Metric) -> Metric:
    """Build a metric from the diagonal of another: O(D) to use, but not cheaper to evaluate.

    Args:
        full: a dense metric.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> full = mt.metrics.logistic(jnp.array([[1.0, 2.0], [0.0, 1.0]]), prior=jnp.ones(2))
        >>> mt.metrics.diagonal(full).matrix(jnp.zeros(2)).tolist()
        [1.25, 2.25]
    """
    matrix = Partial(_diagonal_of_matrix, full.matrix)
    return Metric(matrix, Partial(_quadratic_of_matrix, matrix))


def _quadratic_of_matrix(matrix: Callable[[Vector], Array], theta: Vector, v: Vector) -> Scalar:
    G = matrix(theta)
    return jnp.vdot(v, G * v) if G.ndim == 1 else jnp.vdot(v, G @ v)


def _diagonal_of_matrix(matrix: Callable[[Vector], Array], theta: Vector) -> Vector:
    G = matrix(theta)
    return G if G.ndim == 1 else jnp.diagonal(G)


def _constant(value: Array, theta: Vector) -> Array:
    del theta
    return value


def _as_matrix(matrix: Array) -> Matrix:
    return jnp.diag(matrix) if matrix.ndim == 1 else matrix


def _information(
    natural: Callable,
    log_partition: Callable,
    data: Any,
    prior: Callable,
    scale: Any,
    theta: Vector,
) -> Matrix:
    def of_datum(datum: Any) -> tuple[Array, Array]:
        def eta(theta: Vector) -> Array:
            return jnp.atleast_1d(natural(theta, datum))

        curvature = jax.hessian(lambda eta: _scalar(log_partition, eta))(eta(theta))
        return jax.jacfwd(eta)(theta), curvature

    jacobians, curvatures = jax.vmap(of_datum)(data)
    weighted = jnp.einsum("nkl,nld->nkd", curvatures, jacobians)
    return scale * jnp.einsum("nkd,nke->de", jacobians, weighted) + _as_matrix(prior(theta))


def _scalar(log_partition: Callable, eta: Array) -> Scalar:
    """Return A(eta), for functions of one natural parameter and of several."""
    return jnp.sum(log_partition(eta[0] if len(eta) == 1 else eta))


def _information_quadratic(
    natural: Callable,
    log_partition: Callable,
    data: Any,
    prior: Callable,
    scale: Any,
    theta: Vector,
    v: Vector,
) -> Scalar:
    def of_datum(datum: Any) -> Scalar:
        def eta(theta: Vector) -> Array:
            return jnp.atleast_1d(natural(theta, datum))

        here, along = jax.jvp(eta, (theta,), (v,))
        gradient = jax.grad(lambda eta: _scalar(log_partition, eta))
        return jnp.vdot(along, jax.jvp(gradient, (here,), (along,))[1])

    prior_quadratic = _quadratic_of_matrix(prior, theta, v)
    return scale * jnp.sum(jax.vmap(of_datum)(data)) + prior_quadratic


def _weights(x: Array, scale: Any, theta: Vector) -> Array:
    chance = jax.nn.sigmoid(x @ theta)
    return scale * chance * (1 - chance)


def _logistic(x: Array, prior: Array, scale: Any, theta: Vector) -> Matrix:
    return (x.T * _weights(x, scale, theta)[None]) @ x + _as_matrix(prior)


def _logistic_quadratic(x: Array, prior: Array, scale: Any, theta: Vector, v: Vector) -> Scalar:
    prior_quadratic = _quadratic_of_matrix(Partial(_constant, prior), theta, v)
    return jnp.vdot(_weights(x, scale, theta), (x @ v) ** 2) + prior_quadratic


def _softabs_of_hessian(logdensity: Callable, sharpness: Any, theta: Vector) -> Matrix:
    return _softabs(-jax.hessian(logdensity)(theta), jnp.asarray(sharpness, theta.dtype))


def _smooth_abs(x: Array, sharpness: Scalar) -> tuple[Array, Array]:
    """Return x coth(s x) and its derivative, by series near 0 and by limits far from it."""
    z = sharpness * x
    is_small, is_large = jnp.abs(z) < 1e-3, jnp.abs(z) > 20
    safe = jnp.where(is_small | is_large, 1.0, z)
    value = jnp.where(is_large, jnp.abs(z), safe / jnp.tanh(safe))
    slope = 1 / jnp.tanh(safe) - safe / jnp.sinh(safe) ** 2
    slope = jnp.where(is_large, jnp.sign(z), slope)
    value = jnp.where(is_small, 1 + z**2 / 3, value)
    slope = jnp.where(is_small, 2 * z / 3, slope)
    return value / sharpness, slope


@jax.custom_jvp
def _softabs(matrix: Matrix, sharpness: Scalar) -> Matrix:
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    return (vectors * _smooth_abs(eigenvalues, sharpness)[0][None]) @ vectors.T


@_softabs.defjvp
def _softabs_jvp(primals: tuple, tangents: tuple) -> tuple[Matrix, Matrix]:
    """Return the derivative by Daleckii and Krein: U (J o (U' dH U)) U', J divided differences.

    It also holds for equal eigenvalues, where the derivative of an eigenvector does not exist.
    """
    matrix, sharpness = primals
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    values, _ = _smooth_abs(eigenvalues, sharpness)
    gaps = eigenvalues[:, None] - eigenvalues[None]
    middles = (eigenvalues[:, None] + eigenvalues[None]) / 2
    is_near = jnp.abs(gaps) <= 1e-6 * jnp.max(jnp.abs(eigenvalues))
    is_straight = (jnp.abs(gaps) * sharpness < 1e-3) | (jnp.abs(middles) * sharpness > 20)
    is_equal = is_near & is_straight | (gaps == 0)  # there the quotient is rounding error
    divided = (values[:, None] - values[None]) / jnp.where(is_equal, 1.0, gaps)
    quotients = jnp.where(is_equal, _smooth_abs(middles, sharpness)[1], divided)
    turned = vectors.T @ tangents[0] @ vectors
    result = (vectors * values[None]) @ vectors.T
    return result, vectors @ (quotients * turned) @ vectors.T
