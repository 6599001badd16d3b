"""Posterior predictive distributions: of a function of parameters and one datum, or of a NumPyro
model's observed sites.

Data are taken piece by piece, so that the memory needed does not depend on the number of draws in
the trace, nor, for a function, on the number of data.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from momentem.checks import check_between, check_count
from momentem.predictive.draws import Draws, spaced_draws
from momentem.predictive.laws import CLASSES, kind_of, tell, tell_rows
from momentem.predictive.rows import count_rows, open_rows, pieces
from momentem.targets._density import Target
from momentem.targets._minibatch import StochasticTarget
from momentem.targets.origin import Labels, label_data

if TYPE_CHECKING:
    import xarray

__all__ = ["Part", "Prediction", "predict"]

MOST_NUMBERS = 10**8  # of draws of predictions, in memory at once


class Part(NamedTuple):
    """Predictions of some data."""

    first: int
    values: dict[str, np.ndarray]  # (draw, datum, …): draws of the data
    means: dict[str, np.ndarray]  # their expectations given each draw of the parameters
    log_densities: dict[str, np.ndarray] | None  # (draw, datum) of data that were given


class Prediction:
    """Posterior predictive distribution of some data. Build it with `momentem.predict`.

    It is computed piece by piece when it is asked for. `mean` and `sd` have a number per datum;
    `interval(0.9)` has a lower and an upper bound; `draws` has all draws, as ArviZ's group
    `posterior_predictive` wants them. `kinds` says which kind of data each variable is of.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt, numpyro.distributions as dist
        >>> target = mt.density(lambda p: -0.5 * p["mu"] ** 2, {"mu": 0.0})
        >>> trace = mt.sample(target)
        >>> told = mt.predict(trace, lambda p, x: dist.Normal(p["mu"] * x, 1.0), jnp.arange(3.0))
        >>> told.mean["y"].shape, told.interval(0.5)["y"].shape, told.kinds
        ((3,), (3, 2), {'y': 'numbers'})
    """

    def __init__(self, source: Any, draws: Draws, labels: Labels, seed: int):
        self._source, self._draws, self._labels = source, draws, labels
        self._key = jax.random.key(seed)
        self._known: dict[float, dict[str, Any]] = {}
        self.kinds: dict[str, str] = source.kinds(self._key, draws.parameters)

    @property
    def num_draws(self) -> int:
        """The number of posterior draws that it is made of."""
        return len(jax.tree.leaves(self._draws.parameters)[0])

    @property
    def num_data(self) -> int | None:
        """The number of data, or None for a model that has them in several shapes."""
        return self._source.num_data

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each variable of a model; of a function, it is not known before."""
        return self._source.shapes

    def parts(self, seen: dict[str, Any] | None = None) -> Iterator[Part]:
        """Yield the predictions piece by piece, with the log density of data that were seen."""
        yield from self._source.parts(self._key, self._draws.parameters, seen)

    @property
    def mean(self) -> "xarray.Dataset":
        """The mean of every datum; of a datum that is one of several classes, their
        probabilities."""
        return self._labelled(self._reduced(0.9)["mean"])

    @property
    def sd(self) -> "xarray.Dataset":
        """The standard deviation of every datum."""
        return self._labelled(self._reduced(0.9)["sd"])

    def interval(self, probability: float = 0.9) -> "xarray.Dataset":
        """Return the central interval of every datum, (…, 2).

        Args:
            probability: of the interval.
        """
        check_between(0.0, 1.0, probability=probability)
        return self._labelled(self._reduced(probability)["interval"])

    @property
    def draws(self) -> "xarray.Dataset":
        """Draws of all data, (chain, draw, …)."""
        if self.num_data is not None and self.num_draws * self.num_data > MOST_NUMBERS:
            raise ValueError(
                f"draws of predictions must be at most {MOST_NUMBERS:,} numbers, got "
                f"{self.num_draws * self.num_data:,}; ask for mean, sd or interval, or lower "
                "num_draws of predict"
            )
        parts = sorted(self.parts(), key=lambda part: part.first)
        shape = self._draws.num_chains, len(self._draws.draw)
        arrays = {}
        for name, first in parts[0].values.items():
            whole = [part.values[name] for part in parts]
            joined = np.concatenate(whole, axis=1) if len(whole) > 1 else first
            arrays[name] = joined.reshape(*shape, *joined.shape[1:])
        found = label_data(arrays, self._labels, ("chain", "draw"))
        return found.assign_coords(draw=self._draws.draw)

    def __repr__(self) -> str:
        data = "data" if self.num_data is None else f"{self.num_data:,} data"
        return f"Prediction of {data} ({', '.join(self.kinds)}) from {self.num_draws} draws"

    def _reduced(self, probability: float) -> dict[str, Any]:
        """Return mean, sd and interval, computed once per probability."""
        if probability not in self._known:
            tails = (1 - probability) / 2, (1 + probability) / 2
            kinds, found = self.kinds, {"mean": [], "sd": [], "interval": []}
            for part in self.parts():
                first = part.first
                values = {k: np.asarray(v, float) for k, v in part.values.items()}
                ends = {
                    k: np.moveaxis(np.quantile(v, tails, axis=0), 0, -1)
                    for k, v in values.items()
                    if kinds[k] != CLASSES
                }
                found["mean"].append((first, {k: v.mean(axis=0) for k, v in part.means.items()}))
                found["sd"].append((first, {k: v.std(axis=0) for k, v in values.items()}))
                found["interval"].append((first, ends))
            self._known = {probability: {what: _in_order(pieces) for what, pieces in found.items()}}
        return self._known[probability]

    def _labelled(self, arrays: dict[str, np.ndarray]) -> "xarray.Dataset":
        return label_data(arrays, self._labels)


def _in_order(found: list[tuple[int, dict[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    if len(found) == 1:
        return found[0][1]
    found = sorted(found, key=lambda item: item[0])
    return {name: np.concatenate([arrays[name] for _, arrays in found]) for name in found[0][1]}


def predict(
    trace: "xarray.DataTree",
    model: Any,
    new_data: Any = None,
    num_draws: int | None = 1000,
    batch: int = 1000,
    seed: int = 0,
) -> Prediction:
    """Return the posterior predictive distribution of data.

    Args:
        trace: what `sample` returned, in memory or on disk; only the draws that are used are read.
        model: a function of (parameters, datum) that returns a NumPyro distribution of what is
            predicted, or a number; or the target of a NumPyro model.
        new_data: for a function, rows as for `dataset`: an array, a pytree of arrays, a
            `momentem.stream` or one of `momentem.sources`. For a NumPyro model, the arguments that
            change: a tuple of the first ones, or a dict by name. Default: those it was built with.
        num_draws: evenly spaced posterior draws to use, of all chains together. None: all.
        batch: rows of data at a time, for a function.
        seed: of the draws of data.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt, numpyro, numpyro.distributions as dist
        >>> def line(x, y=None):
        ...     slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
        >>> x = jnp.linspace(-1.0, 1.0, 20)
        >>> target = mt.from_numpyro(line, x, y=x)
        >>> trace = mt.sample(target)
        >>> mt.predict(trace, target, jnp.array([2.0, 3.0])).mean["y"].shape
        (2,)
    """
    check_count(1, batch=batch)
    check_count(0, seed=seed)
    if isinstance(model, Target | StochasticTarget):
        return _predict_model(trace, model, new_data, num_draws, seed)
    if not callable(model):
        raise TypeError(
            f"model must be a target or a function of (parameters, datum), got {model!r:.80}"
        )
    if new_data is None:
        raise ValueError("new_data must be given for a function: rows of data to predict")
    draws = spaced_draws(trace, None, num_draws)
    return Prediction(_Rows(model, open_rows(new_data), batch), draws, Labels(), seed)


def _predict_model(
    trace: Any, target: Any, new_data: Any, num_draws: int | None, seed: int
) -> Prediction:
    origin = target.origin
    if origin is None or origin.generate is None:
        raise ValueError(
            "model must be a NumPyro model's target to predict by itself; give a function instead: "
            "momentem.predict(trace, lambda parameters, datum: numpyro.distributions.Normal(…), "
            "data). For a PyMC model: pymc.sample_posterior_predictive("
            "trace['posterior'].to_dataset(), model=model)"
        )
    draws = spaced_draws(trace, target, num_draws)
    labels = origin.labels if new_data is None else Labels(origin.labels.dims)
    try:
        return Prediction(_Model(origin.generate(new_data)), draws, labels, seed)
    except (TypeError, ValueError, IndexError) as error:
        error.add_note(
            "new_data replaces some of the model's arguments, and the others stay as they were: "
            "give all that have a row per datum, e.g. {'x': new_x, 'group': new_group}."
        )
        raise


class _Rows:
    """Predictions of a function, piece by piece."""

    def __init__(self, function: Any, rows: Any, batch: int):
        self.function, self.rows, self.batch = function, rows, batch
        self.num_data, self.shapes = count_rows(rows), {}

    def kinds(self, key: Any, parameters: Any) -> dict[str, str]:
        """Return the kind of what is predicted."""
        first = next(pieces(self.rows, 1)).rows
        found: list[str] = []

        def look(parameters: Any, row: Any) -> None:
            found.append(kind_of(self.function(parameters, row)))

        one = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (parameters, first)
        )
        try:
            jax.eval_shape(look, *one)
        except AssertionError as error:  # NumPyro's, of `sample` outside of its handlers
            raise TypeError(
                "model must be a function of (parameters, datum) or the target of a NumPyro model, "
                "got one that draws by itself; give the target that momentem.from_numpyro made"
            ) from error
        except (TypeError, ValueError, IndexError) as error:
            shapes = ", ".join(str(leaf.shape) for leaf in jax.tree.leaves(one[1]))
            error.add_note(
                f"model was called with a datum of shape {shapes}: new_data must have a row per "
                "datum, so that one alone is row[None]."
            )
            raise
        return {"y": found[0]}

    def parts(self, key: Any, parameters: Any, seen: dict[str, Any] | None) -> Iterator[Part]:
        """Yield the predictions."""
        run = jax.jit(lambda *args: tell_rows(self.function, *args))
        for piece in pieces(self.rows, self.batch):
            size = len(jax.tree.leaves(piece.rows)[0])
            index = piece.first + jnp.arange(size)
            there = None
            if seen is not None:
                there = jnp.asarray(
                    seen["y"][np.minimum(np.asarray(index), piece.first + piece.number - 1)]
                )
            told = run(key, parameters, index, jax.tree.map(jnp.asarray, piece.rows), there)
            value, mean = ({"y": np.asarray(x)[:, : piece.number]} for x in told[:2])
            density = told.log_density
            if density is not None:
                density = {"y": np.asarray(density)[:, : piece.number]}
            yield Part(piece.first, value, mean, density)


class _Model:
    """Predictions of a NumPyro model, all data at once and draw by draw."""

    num_data = None

    def __init__(self, generate: Any):
        self.generate = generate
        self.shapes: dict[str, tuple[int, ...]] = {}

    def kinds(self, key: Any, parameters: Any) -> dict[str, str]:
        """Return the kind of every observed site."""
        found: dict[str, str] = {}

        def look(key: Any, parameters: Any) -> None:
            for name, (law, value) in self.generate(key, parameters).items():
                found[name], self.shapes[name] = kind_of(law), jnp.shape(value)

        jax.eval_shape(look, key, jax.tree.map(lambda leaf: leaf[0], parameters))
        return found

    def parts(self, key: Any, parameters: Any, seen: dict[str, Any] | None) -> Iterator[Part]:
        """Yield the predictions of all data."""
        told = _all_told(self.generate, key, parameters, seen)
        arrays = [
            {name: getattr(one, f) for name, one in told.items()}
            for f in ("value", "mean", "log_density")
        ]
        value, mean, density = (jax.tree.map(np.asarray, each) for each in arrays)
        yield Part(0, value, mean, None if seen is None else density)


@jax.jit
def _all_told(generate: Any, key: Any, parameters: Any, seen: Any) -> Any:
    def one(args: tuple[Any, Any]) -> Any:
        draw, parameters = args
        laws = generate(jax.random.fold_in(key, draw), parameters)
        return {
            name: tell(law, key, None if seen is None else seen[name], value)
            for name, (law, value) in laws.items()
        }

    number = len(jax.tree.leaves(parameters)[0])
    return jax.lax.map(one, (jnp.arange(number), parameters), batch_size=16)
