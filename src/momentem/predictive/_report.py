"""A run as one HTML file that needs no network: verdict, summary, pictures, what was learnt."""

import html
import os
import platform
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from momentem._version import __version__
from momentem.predictive._predict import Prediction
from momentem.predictive.draws import check_posterior
from momentem.predictive.markup import document, facts, image, table
from momentem.predictive.panels import choose_scalars, marginal, panels, predicted, ranks
from momentem.predictive.scalars import Scalars, read_scalars
from momentem.run.diagnostics import summary
from momentem.run.verdict import Verdict, judge

if TYPE_CHECKING:
    import xarray

__all__ = ["page", "report"]

NUM_SCALARS = 4  # with pictures of their own
NOTE = (
    "A click on a column sorts by it. eti is the central interval, and ess_tail the ESS of its "
    "ends; the verdict looks at the quantiles of 5 and 95 %."
)
NAMES = {  # of the attributes of a trace, in words
    "inference_library": "sampled by",
    "sampling_time": "time",
    "is_interrupted": "interrupted (1: yes)",
    "num_divergences": "divergent draws",
    "first_divergence": "divergences",
    "num_transitions": "draws, with those that were thinned out",
    "num_warmup_divergences": "divergent iterations of warm-up",
}


def report(
    trace: "xarray.DataTree",
    file: str | os.PathLike[str],
    target: Any = None,
    prediction: Prediction | None = None,
    y: Any = None,
) -> Path:
    """Write a run as one HTML file, which needs no network.

    It says whether the draws can be trusted and what to do if not. It has a table that is sorted by
    a click, pictures that grow by a click, what was learnt, and the versions and the seed.

    Args:
        trace: what `sample` returned, in memory or on disk.
        file: to write, e.g. "report.html".
        target: the target that was sampled, which is then described.
        prediction: from `predict`, to be shown with its data.
        y: the data that were predicted, for `scores`.

    Returns:
        The path of the file.

    Examples:
        >>> import tempfile, jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, jnp.zeros(2))
        >>> trace = mt.sample(target, mt.hmc(target, step_size=1.0, num_steps=2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mt.report(trace, f"{folder}/report.html", target).stat().st_size < 5_000_000
        True
    """
    path = Path(file)
    path.write_text(page(trace, target, prediction, y), encoding="utf-8")
    return path


def page(
    trace: "xarray.DataTree",
    target: Any = None,
    prediction: Prediction | None = None,
    y: Any = None,
    refresh: int = 0,
) -> str:
    """Return the report as HTML. A page of a run that is going is loaded again every `refresh`
    seconds."""
    check_posterior(trace)
    verdict, scalars = judge(trace), read_scalars(trace)
    rows, note = _summarise(scalars)
    sections = [
        f"<h1>momentem: {html.escape(_what(trace, target))}</h1>",
        _verdict(verdict),
        f"<h2>Summary</h2>{table(rows)}<p>{note}</p>",
        f"<h2>Pictures</h2>{_pictures(trace, scalars)}",
        *([_predicted(prediction, y)] if prediction is not None else []),
        f"<h2>The run</h2>{facts(_facts(trace))}",
    ]
    return document("momentem report", sections, refresh)


def _what(trace: "xarray.DataTree", target: Any) -> str:
    sizes = trace["posterior"].sizes
    of = f" from {target}" if target is not None else ""
    return f"{sizes['chain']} chains of {sizes['draw']:,} draws{of}"


def _verdict(verdict: Verdict) -> str:
    items = "".join(f"<li>{html.escape(trouble)}</li>" for trouble in verdict.troubles)
    kind = "bad" if verdict.troubles or verdict.found is None else "good"
    items = f"<ul>{items}</ul>" if items else ""
    return f"<div class='{kind}'><strong>{html.escape(verdict.text())}</strong>{items}</div>"


def _summarise(scalars: Scalars) -> tuple[Any, str]:
    """Return the summary of scalars, and a note on what it is of."""
    from arviz_base import dict_to_dataset
    from xarray import DataTree

    # one array: a thousand variables would take xarray half a minute
    stacked = {"x": np.stack(list(scalars.draws.values()), axis=-1)}
    group = DataTree.from_dict({"posterior": dict_to_dataset(stacked)})
    rows = summary(group, round_to="none").map(lambda value: f"{value:.4g}")
    rows.index = list(scalars.draws)
    number = len(scalars.draws)
    note = f"{number:,} of {scalars.total:,} parameters. " if number < scalars.total else ""
    if scalars.every > 1:
        note += f"From every {scalars.every:,}th draw, so that ESS is a lower bound. "
    return rows, note + NOTE


def _pictures(trace: "xarray.DataTree", scalars: Scalars) -> str:
    groups = [[image(draw, title) for title, draw in panels(trace, scalars).items()], []]
    for label, draws in choose_scalars(scalars, NUM_SCALARS).items():
        for kind in (marginal, ranks):
            draw = partial(kind, label=label, draws=draws)
            groups[1].append(image(draw, f"{kind.__name__} of {label}"))
    return "".join(f"<div class='pictures'>{''.join(group)}</div>" for group in groups)


def _predicted(prediction: Prediction, y: Any) -> str:
    from momentem.predictive.scoring import scores

    found = ""
    if y is not None:
        found = table(scores(prediction, y).map(lambda value: f"{value:.4g}"))
    pictures = "".join(
        image(draw, f"predictions of {name}", "large")
        for name, draw in predicted(prediction, y).items()
    )
    return (
        f"<h2>Predictions</h2><p>{html.escape(repr(prediction))}</p>{found}"
        f"<div class='pictures'>{pictures}</div>"
    )


def _facts(trace: "xarray.DataTree") -> dict[str, str]:
    import jax

    attrs = trace.attrs
    found = {NAMES.get(str(name), str(name)): str(value) for name, value in attrs.items()}
    found = {name: value for name, value in found.items() if value}
    if "sampling_time" in attrs:
        found[NAMES["sampling_time"]] = f"{attrs['sampling_time']:,.1f} s"
    if "em" in trace.children and trace["em"].sizes["m_step"]:
        em = trace["em"].to_dataset()
        found["M-steps"] = str(em.sizes["m_step"])
        found["learnt step size"] = f"{float(em['final_step_size']):.4g}"
        found["condition number of the learnt mass"] = f"{float(em['condition_number'][-1]):.4g}"
    return found | {
        "momentem": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
