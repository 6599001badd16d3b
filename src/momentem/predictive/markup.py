"""The HTML of a report: one file, without anything from elsewhere."""

import base64
import html
import io
from typing import Any

from momentem.run.figures import new_figure

__all__ = ["document", "facts", "image", "table"]

STYLE = """
:root{color-scheme:light}body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;
max-width:75rem;color:#222;background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
h1,td,th{overflow-wrap:break-word}.good,.bad{padding:.7rem 1rem;border-left:.4rem solid #2a7;
background:#eefaf3}.bad{border-color:#c33;background:#fdeeee}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem}th,td{padding:.2rem .6rem;text-align:right;
white-space:nowrap}th:first-child,td:first-child{text-align:left}thead th{cursor:pointer;
border-bottom:2px solid #888}tbody tr:nth-child(odd){background:#f5f5f5}.facts th,.facts td{
text-align:left;white-space:normal;font-weight:normal;vertical-align:top}.pictures{display:grid;
gap:.7rem;grid-template-columns:repeat(auto-fill,minmax(min(17rem,100%),1fr))}.pictures img{
width:100%;cursor:zoom-in}.pictures img.large{grid-column:1/-1;max-width:50rem;
cursor:zoom-out}
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


def document(title: str, sections: list[str], refresh: int = 0) -> str:
    """Return a page. A browser loads it again every `refresh` seconds, if they are not 0."""
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'>{again}"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        "<link rel='icon' href='data:,'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"{''.join(sections)}<script>{SCRIPT}</script></body></html>"
    )


def table(frame: Any) -> str:
    """Return a table that a click on a column's head sorts."""
    head = "".join(f"<th>{html.escape(str(c))}</th>" for c in ["", *frame.columns])
    body = "".join(
        f"<tr><td>{html.escape(str(label))}</td>"
        + "".join(f"<td>{html.escape(str(value))}</td>" for value in row)
        + "</tr>"
        for label, row in zip(frame.index, frame.itertuples(index=False), strict=True)
    )
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div class='wide'><table>{inner}</table></div>"


def facts(found: dict[str, str]) -> str:
    """Return names and what they are, below each other."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in found.items()
    )
    return f"<div class='wide'><table class='facts'><tbody>{rows}</tbody></table></div>"


def image(draw: Any, title: str, kind: str = "") -> str:
    """Return a picture that `draw` draws on a Matplotlib axis. It is large if its kind is."""
    figure = new_figure(figsize=(5, 3))
    draw(figure.subplots())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    code = base64.b64encode(file.getvalue()).decode()
    return f"<img class='{kind}' alt='{html.escape(title)}' src='data:image/png;base64,{code}'>"
