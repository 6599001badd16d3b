"""Scores of predictions against data that were seen, with standard errors over data.

log density     log mean_s p(y_i | theta_s)
RMSE            sqrt mean_i (y_i - mean_i)^2
CRPS            E |X_i - y_i| - E |X_i - X_i'| / 2          of the draws X_i, X_i'
Brier           mean_i (p_i - y_i)^2, or the sum of it over classes
ECE             sum_b |sum_{i in b} (p_i - y_i)| / N        ten bins b of p_i
coverage        share of y_i inside their central interval
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from momentem.checks import check_instance
from momentem.predictive._predict import Part, Prediction
from momentem.predictive.laws import BINARY, CLASSES, NUMBERS

if TYPE_CHECKING:
    import pandas

__all__ = ["scores"]

BINS = 10
COVERED = (0.5, 0.9)


def scores(prediction: Prediction, y: Any) -> "pandas.DataFrame":
    """Return the scores of a prediction that suit its kind of data.

    Args:
        prediction: from `predict`.
        y: the data that were seen, in the order of those that were predicted; a dict by name if
            several variables were.

    Returns:
        A table with a row per score, and columns `value` and `se`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt, numpyro.distributions as dist
        >>> target = mt.density(lambda p: -0.5 * p["mu"] ** 2, {"mu": 0.0})
        >>> trace = mt.sample(target)
        >>> told = mt.predict(trace, lambda p, x: dist.Normal(p["mu"] * x, 1.0), jnp.arange(3.0))
        >>> list(mt.scores(told, jnp.arange(3.0)).index)
        ['log_density', 'rmse', 'crps', 'coverage_50', 'coverage_90']
    """
    import pandas as pd

    check_instance(Prediction, "build it with momentem.predict", prediction=prediction)
    given = y if isinstance(y, dict) else dict.fromkeys(prediction.kinds, y)
    if set(given) != set(prediction.kinds):
        raise ValueError(
            f"y must have the variables {list(prediction.kinds)}, got {list(given)}; give a dict"
        )
    seen = {name: np.asarray(values) for name, values in given.items()}
    for name, values in seen.items():
        if not np.isfinite(np.asarray(values, float)).all():
            raise ValueError(f"y must be finite, got another number in {name!r}; drop those data")
        if prediction.num_data is not None and len(values) != prediction.num_data:
            raise ValueError(
                f"y must have a row for each of the {prediction.num_data} data that were "
                f"predicted, got {len(values)}"
            )
        if (shape := prediction.shapes.get(name, values.shape)) != values.shape:
            raise ValueError(
                f"y must have the shape of what was predicted, {name!r} of {shape}, got "
                f"{values.shape}"
            )
    pieces: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in seen}
    for part in prediction.parts(seen):
        for name, values in seen.items():
            pieces[name].append(_terms(part, name, prediction.kinds[name], values))
    rows = {}
    for name, found in pieces.items():
        terms = {key: np.concatenate([piece[key] for piece in found]) for key in found[0]}
        prefix = "" if len(seen) == 1 else f"{name}: "
        rows |= {f"{prefix}{key}": value for key, value in _summarise(terms).items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "se"])


def _terms(part: Part, name: str, kind: str, seen: np.ndarray) -> dict[str, np.ndarray]:
    """Return what each datum adds to the scores."""
    from scipy.special import logsumexp

    values, means = part.values[name], part.means[name].mean(axis=0)
    y = seen if seen.ndim == 0 else seen[part.first : part.first + len(means)]
    if values.shape[1:] != y.shape:
        raise ValueError(
            f"y must have the shape of what was predicted, {name!r} of {values.shape[1:]}, got "
            f"{y.shape}"
        )
    found: dict[str, np.ndarray] = {}
    densities = None if part.log_densities is None else part.log_densities.get(name)
    if densities is not None:
        found["log_density"] = (logsumexp(densities, axis=0) - np.log(len(densities))).ravel()
    if kind == BINARY:
        p, hit = means.ravel(), y.ravel().astype(float)
        found["accuracy"] = ((p > 0.5) == (hit > 0.5)).astype(float)
        return found | {"brier": (p - hit) ** 2, "p": p, "hit": hit}
    if kind == CLASSES:
        p = means.reshape(-1, means.shape[-1])
        hits = np.eye(p.shape[1])[y.ravel().astype(int)]
        right = (p.argmax(axis=1) == y.ravel()).astype(float)
        found["accuracy"] = right
        return found | {"brier": ((p - hits) ** 2).sum(axis=1), "p": p.max(axis=1), "hit": right}
    found["square"] = (means - y).ravel() ** 2
    if kind == NUMBERS:
        flat = values.reshape(len(values), -1).astype(float)
        found["crps"] = _crps(flat, y.ravel())
        for probability in COVERED:
            low, high = np.quantile(flat, [(1 - probability) / 2, (1 + probability) / 2], axis=0)
            inside = (low <= y.ravel()) & (y.ravel() <= high)
            found[f"coverage_{100 * probability:.0f}"] = inside.astype(float)
    return found


def _crps(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the CRPS of each datum from draws (draw, datum). E |X - X'| is a sum over the sorted
    draws."""
    number = len(draws)
    weights = 2 * np.arange(1, number + 1) - number - 1
    apart = 2 * (weights[:, None] * np.sort(draws, axis=0)).sum(axis=0) / number**2
    return np.abs(draws - y).mean(axis=0) - apart / 2


def _summarise(terms: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Return value and standard error of each score."""
    found = {}
    for name, each in terms.items():
        if name in ("p", "hit"):
            continue
        mean, error = float(each.mean()), _error(each)
        if name == "square":
            rmse = mean**0.5
            found["rmse"] = rmse, error / (2 * rmse) if rmse else 0.0
        else:
            found[name] = mean, error
    if "p" in terms:
        gap = terms["p"] - terms["hit"]
        which = np.minimum((terms["p"] * BINS).astype(int), BINS - 1)
        signs = np.sign(np.bincount(which, weights=gap, minlength=BINS))[which]
        found["ece"] = float((signs * gap).mean()), _error(signs * gap)
    return found


def _error(each: np.ndarray) -> float:
    return float(each.std(ddof=1) / len(each) ** 0.5) if len(each) > 1 else float("nan")
