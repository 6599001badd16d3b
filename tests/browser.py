"""A page in headless Chromium: its script errors, its pictures, and its width."""

import html
import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
LOOK = """
<script>
const errors=[],frames=document.querySelectorAll('iframe'),found=[];
window.addEventListener('load',()=>{for(const frame of frames){
const page=frame.contentDocument,images=[...page.images];
found.push({pictures:images.length,drawn:images.filter(i=>i.complete&&i.naturalWidth>50).length,
width:page.documentElement.scrollWidth,asked:frame.contentWindow.innerWidth,
errors:frame.contentWindow.faults});
const head=page.querySelector('thead th:nth-child(2)');
if(head){const column=()=>[...page.querySelector('table').tBodies[0].rows].map(
r=>parseFloat(r.cells[1].textContent));head.click();const up=column();head.click();
found.at(-1).up=up;found.at(-1).down=column()}
if(images.length){const before=images[0].clientWidth;images[0].click();
found.at(-1).zoom=images[0].clientWidth/before}}
document.body.textContent='FOUND'+JSON.stringify(found)+'END'})
</script>"""
CATCH = "<script>window.faults=[];window.onerror=m=>{window.faults.push(String(m))}</script>"


# in a container, and without a word to its makers
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"]
FLAGS += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--virtual-time-budget=20000"]


def _run_browser(folder, *arguments):
    if CHROMIUM is None:
        pytest.skip("no browser is installed: apt-get install chromium")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}/profile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def photograph(page, file, width, height):
    """A picture of a page, as a browser shows it."""
    source = file.with_suffix(".html")
    source.write_text(page, encoding="utf-8")
    size = f"--window-size={width},{height}"
    done = _run_browser(
        file.parent, f"--screenshot={file}", "--hide-scrollbars", size, source.as_uri()
    )
    assert file.is_file(), done.stderr[-2000:]


def visit(address, folder):
    """What a browser makes of the page at an address, as HTML."""
    return _run_browser(folder, "--dump-dom", address).stdout


def look_at(page, folder, widths=(1280, 400)):
    """What a browser makes of a page at these widths."""
    caught = page.replace("<head>", f"<head>{CATCH}", 1)
    frames = "".join(
        f"<iframe width={w} height=900 style='border:0' srcdoc='{html.escape(caught)}'></iframe>"
        for w in widths
    )
    file = folder / "look.html"
    file.write_text(f"<!doctype html><html><body>{frames}{LOOK}</body></html>", encoding="utf-8")
    done = _run_browser(folder, "--dump-dom", file.as_uri())
    text = re.search(r"FOUND(.*)END", done.stdout)
    assert text is not None, done.stderr[-2000:]
    return json.loads(html.unescape(text[1]))
