"""Conformance checks for kernels and samplers, yours as well as ours.

    check_kernel(make)       the contract of a Kernel, for every kind of mass and every float dtype
    check_sampler(make)      the contract of a Sampler
    check_mass(mass)         the contract of a mass: how it acts, and how it is learnt
    invariance(…)            the smallest p-value of a test that a kernel leaves a known
                             distribution alone

Each check raises AssertionError with what was broken. `make` builds what is checked from a target,
so that the checks can choose the targets: `skewed_target`, or `minibatch_target` for what needs
minibatches.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from momentem.masses import (
    DenseMass,
    DiagonalMass,
    LearnableMass,
    LowRankMass,
    MatrixMass,
    WindowMass,
)
from momentem.targets._dataset import dataset
from momentem.targets._density import Target, density
from momentem.targets._minibatch import AnyTarget, StochasticTarget
from momentem.types import EnsembleInfo, Info, Kernel, Learnt, Mass, PRNGKey, Sampler

__all__ = [
    "check_kernel",
    "check_mass",
    "check_sampler",
    "invariance",
    "minibatch_target",
    "skewed_target",
]

NUM_CHAINS = 3


def _skewed(parameters: dict[str, Array]) -> Array:
    """Return a log density without symmetries, which would hide errors of sign: a log-gamma,
    correlated with normals."""
    x, y = parameters["x"], parameters["y"]
    return 2 * x - jnp.exp(x) - 0.5 * jnp.sum((y - 0.3 * x) ** 2 / jnp.array([1.0, 0.25], y.dtype))


def skewed_target(dtype: Any) -> Target:
    """Return a target of three parameters, none of them with a symmetric density.

    Args:
        dtype: of the parameters.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> mt.testing.skewed_target(jnp.float32).initial.shape
        (3,)
    """
    return density(_skewed, {"x": jnp.zeros((), dtype), "y": jnp.zeros(2, dtype)})


def _log_prior(weights: Array) -> Array:
    return -0.5 * jnp.sum(weights**2)


def _log_likelihood(weights: Array, datum: Array) -> Array:
    return -0.5 * (datum[0] - jnp.vdot(datum[1:], weights)) ** 2


def minibatch_target(dtype: Any) -> StochasticTarget:
    """Return the target of a regression of 60 data on three variables, in batches of ten.

    Args:
        dtype: of the weights and the data.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> mt.testing.minibatch_target(jnp.float32).initial.shape
        (3,)
    """
    data = np.random.default_rng(0).normal(size=(60, 4)).astype(dtype)
    return dataset(_log_prior, _log_likelihood, data, jnp.zeros(3, dtype), batch_size=10)


def _dtypes() -> list[Any]:
    return [jnp.float32, jnp.float64] if jax.config.jax_enable_x64 else [jnp.float32]  # pyright: ignore[reportAttributeAccessIssue]


def _masses(dtypes: list[Any]) -> list[list[Mass]]:
    """Return masses by dtype: every kind of mass in some dtype, and every dtype with some mass."""
    inverse_mass = jnp.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.3]])
    kinds: list[Any] = [
        DiagonalMass(jnp.diagonal(inverse_mass)),
        DenseMass.from_inverse_mass(inverse_mass),
        LowRankMass(jnp.ones(3), jnp.eye(3)[:1], jnp.array([2.0])),
    ]
    shares = [kinds[i :: len(dtypes)] for i in range(len(dtypes))]
    return [
        jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), share)
        for dtype, share in zip(dtypes, shares, strict=True)
    ]


def _agree(found: Any, expected: Any, what: str, dtype: Any) -> None:
    tolerance = 1e-4 if dtype == jnp.float32 else 1e-9
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(
            a,
            b,
            rtol=tolerance,
            atol=tolerance,
            err_msg=f"{what}: {jax.tree_util.keystr(path)} differs",
        )


def _check_same_form(before: Any, after: Any, what: str) -> None:
    def form(tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(jnp.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves]

    assert form(before) == form(after), (
        f"{what} must keep its structure, shapes and dtypes over a step"
    )


def _check_info(info: Any, shape: tuple[int, ...], dtype: Any) -> None:
    assert isinstance(info, Info), f"info must be an Info, got {type(info).__name__}"
    for name in ("position", "momentum", "gradient"):
        array = getattr(info, name)
        assert array.shape == shape, f"info.{name} must have shape {shape}, got {array.shape}"
        assert array.dtype == dtype, f"info.{name} must keep dtype {dtype}, got {array.dtype}"
        assert bool(jnp.isfinite(array).all()), f"info.{name} is not finite"
    assert "diverging" in info.stats, f"info.stats must have 'diverging', has {sorted(info.stats)}"
    for name, array in info.stats.items():
        assert array.shape == shape[:-1], (
            f"info.stats[{name!r}] must have shape {shape[:-1]}, got {array.shape}"
        )


def _check_samples(info: Info, dtype: Any) -> None:
    """Check the samples of gradient noise that a kernel reports, with a leading axis of steps."""
    told = {"noise": info.noise}
    if info.information is not None:  # else the noise is it
        told["information"] = info.information
    for name, array in told.items():
        assert array.shape == (len(array), *info.position.shape), (
            f"info.{name} must have shape (steps, {len(info.position)}), got {array.shape}"
        )
        assert array.dtype == dtype, f"info.{name} must keep dtype {dtype}, got {array.dtype}"


def check_kernel(
    make: Callable[[Any], Kernel],
    step_size: float = 0.1,
    target: Callable[[Any], AnyTarget] = skewed_target,
    learnt: Callable[[Learnt], Learnt] | None = None,
) -> None:
    """Check the contract of a kernel.

    jit agrees with eager, in the widest dtype; vmap over chains agrees with a loop; dtypes, shapes
    and structure are kept; what the kernel leaves open is complete, and what its chains share keeps
    its form; the same key gives the same step and another key another; no key is used twice; the
    gradient in Info is that of the target, unless gradient noise is reported.

    Args:
        make: builds the kernel for a target.
        step_size: one at which the kernel is stable on a target of unit scale.
        target: what it is checked on, from a dtype.
        learnt: (what is learnt, at the kernel's own defaults) -> what it is checked with.

    Examples:
        >>> import momentem as mt
        >>> mt.testing.check_kernel(lambda target: mt.kernels.hmc(target, num_steps=3))
    """
    for dtype, masses in zip(_dtypes(), _masses(_dtypes()), strict=True):
        posterior = target(dtype)
        kernel = make(posterior)
        assert isinstance(kernel, Kernel), f"make must return a Kernel, got {type(kernel).__name__}"
        for mass in masses:
            given = kernel.complete(Learnt(mass, jnp.array(step_size, dtype)))
            given = given if learnt is None else kernel.complete(learnt(given))
            _check_same_form(given, kernel.complete(given), "learnt, completed twice,")
            _check_kernel(kernel, posterior, given, dtype)


def _is_widest(dtype: Any) -> bool:
    """Return whether to run without jit as well. That compiles hundreds of programs, one per
    operation, so it is done for one dtype only."""
    return dtype == _dtypes()[-1]


def _check_kernel(kernel: Kernel, target: AnyTarget, learnt: Learnt, dtype: Any) -> None:
    init_key, share_key, *keys = jax.random.split(jax.random.key(0), 2 + NUM_CHAINS)
    with jax.debug_key_reuse(True):
        state = kernel.init(init_key, target.initial, learnt)
        if kernel.share is not None:
            shared = kernel.share(share_key, learnt)
            _check_same_form(learnt, shared, "learnt, as chains share it,")
            learnt = shared
    step = jax.jit(lambda kernel, key, state: kernel.step(key, state, learnt))
    with jax.debug_key_reuse(True):
        eager = kernel.step(keys[0], state, learnt) if _is_widest(dtype) else None
    after, info = step(kernel, keys[0], state)
    if eager is not None:
        _agree((after, info), eager, "jit against eager", dtype)
    _check_info(info, target.initial.shape, dtype)
    _check_same_form(state, after, "state")
    _check_same_form(state, kernel.transport(state, learnt, learnt), "state after transport")
    if info.noise is None:
        gradient = jax.grad(target.logdensity)(info.position)
        _agree(info.gradient, gradient, "info.gradient against the target's", dtype)
    else:
        _check_samples(info, dtype)

    _agree(step(kernel, keys[0], state), step(kernel, keys[0], state), "the same key twice", dtype)
    loop = [step(kernel, key, state) for key in keys]
    other = [bool((a[1].position == b[1].position).all()) for a, b in pairwise(loop)]
    assert not all(other), "different keys must give different draws"
    mapped = jax.jit(jax.vmap(lambda key: kernel.step(key, state, learnt)))(jnp.stack(keys))
    _agree(
        mapped, jax.tree.map(lambda *leaves: jnp.stack(leaves), *loop), "vmap against a loop", dtype
    )


def check_sampler(
    make: Callable[[Any], Sampler],
    target: Callable[[Any], AnyTarget] = skewed_target,
    num_steps: int = 8,
    learns_on: bool = False,
) -> None:
    """Check the contract of a sampler.

    jit agrees with eager, in the widest dtype; a second call, and a call with a sampler made anew,
    do not compile again; dtypes, shapes and structure are kept, through M-steps too; chains differ;
    the same key gives the same step and no key is used twice; raw keys and misshapen positions are
    refused; freezing keeps the mass, and after it nothing that is learnt changes.

    Args:
        make: builds the sampler for a target.
        target: what it is checked on, from a dtype.
        num_steps: steps of 3 chains in which a sampler that learns has at least one M-step.
        learns_on: whether it goes on learning after it is frozen, as `momentem.forever` makes it.

    Examples:
        >>> import momentem as mt
        >>> mt.testing.check_sampler(lambda target: mt.hmc(target, step_size=0.1, num_steps=3))
    """
    for dtype in _dtypes():
        posterior = target(dtype)
        sampler = make(posterior)
        assert isinstance(sampler, Sampler), (
            f"make must return a Sampler, got {type(sampler).__name__}"
        )
        _check_sampler(sampler, make(target(dtype)), posterior, dtype, num_steps, learns_on)


def _check_sampler(
    sampler: Sampler,
    twin: Sampler,
    target: AnyTarget,
    dtype: Any,
    num_steps: int,
    learns_on: bool,
) -> None:
    init_key, step_key, other_key = jax.random.split(jax.random.key(0), 3)
    positions = jnp.broadcast_to(target.initial, (NUM_CHAINS, len(target.initial)))
    for wrong in ((jax.random.key_data(init_key), positions), (init_key, positions[:, :-1])):
        try:
            sampler.init(*wrong)
        except (TypeError, ValueError):
            continue
        raise AssertionError("init must refuse a raw key, and positions that do not fit")
    num_traces = 0

    def count_and_step(sampler: Sampler, key: PRNGKey, state: Any) -> tuple[Any, EnsembleInfo]:
        nonlocal num_traces
        num_traces += 1
        return sampler.step(key, state)

    step = jax.jit(count_and_step)
    with jax.debug_key_reuse(True):
        state = sampler.init(init_key, positions)
        eager = sampler.step(step_key, state) if _is_widest(dtype) else None
    after, info = first = step(sampler, step_key, state)
    if eager is not None:
        _agree(first, eager, "jit against eager", dtype)
    assert isinstance(info, EnsembleInfo), (
        f"info must be an EnsembleInfo, got {type(info).__name__}"
    )
    _check_info(info.chains, positions.shape, dtype)
    _check_same_form(state, after, "state")
    _agree(step(twin, step_key, state), first, "the same key twice", dtype)
    assert num_traces == 1, f"a sampler made anew must not compile again, traced {num_traces} times"
    apart = step(sampler, other_key, state)[1].chains.position
    assert not bool((apart == first[1].chains.position).all()), (
        "different keys must give different draws"
    )
    assert len(np.unique(np.asarray(info.chains.position), axis=0)) > 1, "chains must differ"

    for key in jax.random.split(other_key, num_steps):
        after, info = step(sampler, key, after)
        _check_info(info.chains, positions.shape, dtype)
    assert num_traces == 1, "a step must not compile again: its state changes in (weak) type"
    _check_same_form(state, after, "state")
    frozen, frozen_state = sampler.freeze(after)
    assert isinstance(frozen, Sampler), "freeze must return a sampler and its state"
    learnt = sampler.learnt(after)
    assert learnt is None or isinstance(learnt, Learnt), "learnt must return a Learnt or None"
    if info.learning:
        assert int(info.learning["num_m_steps"]) > 0, f"no M-step in {num_steps} steps of 3 chains"
    before = frozen.learnt(frozen_state)
    if learnt is not None and before is not None:
        _agree(before.mass, learnt.mass, "the mass, frozen", dtype)
    frozen_step = jax.jit(frozen.step)
    for key in jax.random.split(init_key, num_steps):
        frozen_state, _ = frozen_step(key, frozen_state)
    if not learns_on:
        _agree(frozen.learnt(frozen_state), before, "what is learnt, after freezing", dtype)


def check_mass(mass: Any) -> None:
    """Check the contract of a mass: how it acts, against its own matrix, and, as far as it declares
    it (`momentem.masses`), how it is learnt.

    Args:
        mass: of at least two dimensions, with entries of order 1, and not diagonal if it can be.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> mt.testing.check_mass(mt.diagonal_mass(jnp.array([1.0, 4.0])))
    """
    assert isinstance(mass, Mass), f"{type(mass).__name__} lacks members of momentem.Mass"
    assert hasattr(mass, "_fields"), f"{type(mass).__name__} must be a NamedTuple of arrays"
    diagonal = mass.inverse_mass_diagonal()
    dim, dtype = len(diagonal), diagonal.dtype
    identity = jnp.eye(dim, dtype=dtype)

    def matrix(act: Callable[[Array], Array]) -> np.ndarray:
        return np.asarray(jax.vmap(act)(identity)).T  # columns: what becomes of the unit vectors

    inverse, factor = matrix(mass.velocity), matrix(mass.colour)
    p = jax.random.normal(jax.random.key(0), (dim,), dtype)
    same = matrix(lambda x: mass.transport(x, mass))
    expected = {
        "F F' M_I = I, of colour and velocity": (factor @ factor.T @ inverse, identity),
        "whiten is the inverse of colour": (matrix(mass.whiten) @ factor, identity),
        "drift is F^-T": (factor.T @ matrix(mass.drift), identity),
        "unfold is the inverse of drift": (matrix(mass.unfold), factor.T),
        "transport from itself changes nothing": (same, identity),
        "kinetic_energy is p' M_I p / 2": (mass.kinetic_energy(p), p @ inverse @ p / 2),
        "log_determinant is log |M|": (mass.log_determinant(), -np.linalg.slogdet(inverse)[1]),
        "inverse_mass_diagonal": (diagonal, np.diagonal(inverse)),
        "is_proper": (mass.is_proper(), True),
    }
    for what, (found, wanted) in expected.items():
        _agree(jnp.asarray(found), jnp.asarray(wanted), what, dtype)
    condition = float(mass.condition_number())  # may be a bound, by a few power iterations
    assert 0.9 <= condition / np.linalg.cond(inverse) <= 1.001, "condition_number is off"
    draws = jax.vmap(mass.sample)(jax.random.split(jax.random.key(1), 20_000))
    spread = np.cov(np.asarray(jax.vmap(mass.whiten)(draws)).T)
    assert np.abs(spread - np.eye(dim)).max() < 5 * (2 / 20_000) ** 0.5, "sample is not of N(0, M)"
    if isinstance(mass, LearnableMass):
        _check_learnable(mass, inverse, dtype)
    if isinstance(mass, MatrixMass):
        _check_matrix_mass(mass, inverse, dtype)
    if isinstance(mass, WindowMass):
        _check_window_mass(mass, dim, dtype)


def _check_learnable(mass: Any, inverse: np.ndarray, dtype: Any) -> None:
    """Check averages, variances, and gradient noise in the mass's frame."""
    variances = jnp.full(len(inverse), 2.0, dtype)
    even = mass.with_variances(variances)
    _check_same_form(mass, even, "a mass with_variances")
    _agree(even.inverse_mass_diagonal(), variances, "with_variances", dtype)
    rooted = mass.with_root(jnp.sqrt(2.0).astype(dtype) * jnp.eye(len(inverse), dtype=dtype))
    _check_same_form(mass, rooted, "a mass with_root")
    _agree(rooted.inverse_mass_diagonal(), variances, "with_root of R = sqrt(2) I", dtype)
    averaged = mass.average(even, jnp.array(0.25, dtype))
    _check_same_form(mass, averaged, "an averaged mass")
    wanted = jnp.asarray(0.75 * np.diagonal(inverse) + 0.25 * 2.0)
    _agree(averaged.inverse_mass_diagonal(), wanted, "the diagonal of an average", dtype)
    noise = jnp.linspace(1.0, 2.0, len(inverse), dtype=dtype)
    framed, again = mass.with_frame(mass.noise_matrix(noise))
    _check_same_form(mass, framed, "a mass with_frame")
    _agree(jnp.sort(again), noise, "with_frame is the inverse of noise_matrix", dtype)


def _check_matrix_mass(mass: Any, inverse: np.ndarray, dtype: Any) -> None:
    """Check the algebra of matrices, on those that the mass's structure can represent."""
    a = mass.inverse_mass
    again = mass.from_inverse_mass(mass.inverse(mass.inverse(a)))
    matrix = jax.vmap(again.velocity)(jnp.eye(len(inverse), dtype=dtype))
    _agree(matrix, jnp.asarray(inverse), "from_inverse_mass of inverse of inverse", dtype)
    doubled = mass.from_whitened(2 * mass.diagonal(jnp.ones(len(inverse), dtype)))
    _check_same_form(mass, doubled, "a mass from_whitened")
    twice = jax.vmap(doubled.velocity)(jnp.eye(len(inverse), dtype=dtype))
    _agree(twice, jnp.asarray(2 * inverse), "from_whitened of 2 I", dtype)
    _agree(mass.geometric_mean_inverse(a, mass.inverse(a)), a, "A # (A^-1)^-1 = A", dtype)
    x = jax.random.normal(jax.random.key(2), (3, len(inverse)), dtype)
    trace = np.einsum("ni,ij,nj->", x, inverse, x)
    _agree(mass.contract(mass.outer(x)), jnp.asarray(trace, dtype), "contract of outer", dtype)
    many = jnp.array(10**9)
    _agree(mass.shrink(a, many, 2), a, "shrink with many samples changes nothing", dtype)


def _check_window_mass(mass: Any, dim: int, dtype: Any) -> None:
    """Check the mass learnt from draws of a normal with variances 4, whose scores are -x / 4."""
    draws = 2 * jax.random.normal(jax.random.key(3), (20 * dim, dim), dtype)
    learnt = mass.from_window(draws, -draws / 4)
    _check_same_form(mass, learnt, "a mass from_window")
    variances = jnp.full(dim, 4.0, dtype)
    found = learnt.inverse_mass_diagonal()
    assert bool(jnp.all(jnp.abs(found / variances - 1) < 0.2)), f"from_window gives {found}"


def invariance(
    key: PRNGKey,
    kernel: Kernel,
    learnt: Learnt,
    exact: Callable[[PRNGKey, int], Float[Array, "draws dim"]],
    num_draws: int = 50_000,
) -> float:
    """Return the smallest p-value of Kolmogorov-Smirnov tests that one step leaves a known
    distribution invariant.

    Each of `num_draws` exact draws is moved by one step. Every coordinate, and every product of two
    coordinates, is then compared with four times as many fresh exact draws. If the kernel is right,
    the value falls below p with probability at most p D (D + 3) / 2.

    Args:
        key: a typed JAX key.
        kernel: what is tested.
        learnt: the mass and step size to test it at, and what else is not at the kernel's default;
            a step size with visible rejections has the most power.
        exact: draws from the distribution, (key, n) -> n vectors.
        num_draws: how many draws are moved.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(1))
        >>> kernel = mt.kernels.hmc(target, num_steps=2)
        >>> learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(1)), jnp.array(1.0))
        >>> normal = lambda key, n: jax.random.normal(key, (n, 1))
        >>> mt.testing.invariance(jax.random.key(0), kernel, learnt, normal) > 1e-3
        True
    """
    start_key, init_key, step_key, fresh_key, share_key = jax.random.split(key, 5)
    learnt = kernel.complete(learnt)
    if kernel.share is not None:
        learnt = kernel.share(share_key, learnt)

    def one_step(init_key: PRNGKey, step_key: PRNGKey, position: Array) -> Array:
        state = kernel.init(init_key, position, learnt)
        return kernel.step(step_key, state, learnt)[1].position

    keys = (jax.random.split(init_key, num_draws), jax.random.split(step_key, num_draws))
    moved = jax.jit(jax.vmap(one_step))(*keys, exact(start_key, num_draws))
    fresh = exact(fresh_key, 4 * num_draws)
    from scipy.stats import ks_2samp  # half a second to import, and needed here alone

    pairs = zip(_features(moved), _features(fresh), strict=True)
    tests: list[Any] = [ks_2samp(a, b) for a, b in pairs]
    return min(float(test.pvalue) for test in tests)


def _features(draws: Float[Array, "draws dim"]) -> list[np.ndarray]:
    columns = list(np.asarray(draws).T)
    return columns + [a * b for i, a in enumerate(columns) for b in columns[i:]]
