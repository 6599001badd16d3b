"""A run as one HTML file that needs no network: verdict, summary, pictures, what was learnt."""

import base64
import html
import io
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from momentem._version import __version__
from momentem.predictive._predict import Prediction
from momentem.predictive.draws import check_posterior
from momentem.predictive.panels import choose_scalars, first_scalars, marginal, panels, ranks, thin
from momentem.run.diagnostics import summary
from momentem.run.figures import new_figure
from momentem.run.verdict import Verdict, judge

if TYPE_CHECKING:
    import xarray

__all__ = ["page", "report"]

MOST_ROWS = 1000  # of the summary
MOST_NUMBERS = 4 * 10**6  # draws that it is made of; more are thinned
NUM_SCALARS = 4  # with pictures of their own

STYLE = """
:root{color-scheme:light}body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;
max-width:75rem;color:#222;background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.good,.bad{padding:.7rem 1rem;border-left:.4rem solid #2a7;background:#eefaf3}
.bad{border-color:#c33;background:#fdeeee}.wide{overflow-x:auto}table{border-collapse:collapse;
font-size:.85rem}th,td{padding:.2rem .6rem;text-align:right;white-space:nowrap}th:first-child,
td:first-child{text-align:left}thead th{cursor:pointer;border-bottom:2px solid #888}
tbody tr:nth-child(odd){background:#f5f5f5}.pictures{display:grid;gap:.7rem;
grid-template-columns:repeat(auto-fit,minmax(min(20rem,100%),1fr))}.pictures img{width:100%;
cursor:zoom-in}.pictures img.large{grid-column:1/-1;cursor:zoom-out}
"""
SCRIPT = """
for(const cell of document.querySelectorAll('thead th'))cell.addEventListener('click',()=>{
const table=cell.closest('table'),body=table.tBodies[0],at=cell.cellIndex,
up=cell.dataset.up!=='1';cell.dataset.up=up?'1':'0';const rows=[...body.rows];
rows.sort((a,b)=>{const x=a.cells[at].textContent,y=b.cells[at].textContent,d=parseFloat(x)-
parseFloat(y);return (up?1:-1)*(Number.isNaN(d)?x.localeCompare(y):d)});body.append(...rows)});
for(const image of document.querySelectorAll('.pictures img'))
image.addEventListener('click',()=>image.classList.toggle('large'));
"""


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
    verdict = judge(trace)
    table, note = _summarise(trace)
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    sections = [
        f"<h1>momentem: {html.escape(_what(trace, target))}</h1>",
        _verdict(verdict),
        f"<h2>Summary</h2><p>{note}</p>{_table(table)}",
        f"<h2>Pictures</h2><div class='pictures'>{''.join(_pictures(trace))}</div>",
        *([_predicted(prediction, y)] if prediction is not None else []),
        f"<h2>The run</h2>{_table(_facts(trace))}",
    ]
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'>{again}"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        "<link rel='icon' href='data:,'>"
        f"<title>momentem report</title><style>{STYLE}</style></head><body>"
        f"{''.join(sections)}<script>{SCRIPT}</script></body></html>"
    )


def _what(trace: "xarray.DataTree", target: Any) -> str:
    sizes = trace["posterior"].sizes
    of = f" from {target}" if target is not None else ""
    return f"{sizes['chain']} chains of {sizes['draw']:,} draws{of}"


def _verdict(verdict: Verdict) -> str:
    items = "".join(f"<li>{html.escape(trouble)}</li>" for trouble in verdict.troubles)
    kind = "bad" if verdict.troubles or verdict.found is None else "good"
    return (
        f"<div class='{kind}'><strong>{html.escape(verdict.text())}</strong><ul>{items}</ul></div>"
    )


def _summarise(trace: "xarray.DataTree") -> tuple[Any, str]:
    """Return the summary of the first scalars, from evenly spaced draws if there are many."""
    from arviz_base import dict_to_dataset
    from xarray import DataTree

    posterior = trace["posterior"].to_dataset()
    total = sum(int(np.prod(array.shape[2:])) for array in posterior.data_vars.values())
    rows, chains = min(total, MOST_ROWS), posterior.sizes["chain"]
    some = thin(posterior, max(100, MOST_NUMBERS // (rows * chains)))
    found = dict(first_scalars(some, rows))
    table = summary(DataTree.from_dict({"posterior": dict_to_dataset(found)}), round_to="none")
    table = table.map(lambda value: f"{value:.4g}")
    note = f"{rows:,} of {total:,} parameters. " if rows < total else ""
    every = -(-posterior.sizes["draw"] // some.sizes["draw"])
    note += f"From every {every}th draw, so that ESS is a lower bound." if every > 1 else ""
    return table, note


def _table(table: Any) -> str:
    head = "".join(f"<th>{html.escape(str(c))}</th>" for c in ["", *table.columns])
    body = "".join(
        f"<tr><td>{html.escape(str(label))}</td>"
        + "".join(f"<td>{html.escape(str(value))}</td>" for value in row)
        + "</tr>"
        for label, row in zip(table.index, table.itertuples(index=False), strict=True)
    )
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div class='wide'><table>{table}</table></div>"


def _picture(draw: Any, title: str) -> str:
    figure = new_figure(figsize=(5, 3))
    draw(figure.subplots())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    code = base64.b64encode(file.getvalue()).decode()
    return f"<img alt='{html.escape(title)}' src='data:image/png;base64,{code}'>"


def _pictures(trace: "xarray.DataTree") -> list[str]:
    found = [_picture(draw, title) for title, draw in panels(trace).items()]
    for label, draws in choose_scalars(trace["posterior"].to_dataset(), NUM_SCALARS).items():
        for kind in (marginal, ranks):
            found.append(
                _picture(
                    lambda axis, k=kind, n=label, d=draws: k(axis, n, d),
                    f"{kind.__name__} of {label}",
                )
            )
    return found


def _predicted(prediction: Prediction, y: Any) -> str:
    from momentem.predictive.scoring import scores

    found = ""
    if y is not None:
        table = scores(prediction, y).map(lambda value: f"{value:.4g}")
        found = _table(table)
    return f"<h2>Predictions</h2><p>{html.escape(repr(prediction))}</p>{found}"


def _facts(trace: "xarray.DataTree") -> Any:
    import jax
    import pandas as pd

    facts = {str(name): str(value) for name, value in trace.attrs.items()}
    if "em" in trace.children and trace["em"].sizes["m_step"]:
        em = trace["em"].to_dataset()
        facts["M-steps"] = str(em.sizes["m_step"])
        facts["learnt step size"] = f"{float(em['final_step_size']):.4g}"
        facts["condition number of the learnt mass"] = f"{float(em['condition_number'][-1]):.4g}"
    facts |= {"momentem": __version__, "jax": jax.__version__, "python": platform.python_version()}
    return pd.DataFrame({"value": facts})
