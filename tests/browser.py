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


def look_at(page, folder, widths=(1280, 400)):
    """What a browser makes of a page at these widths."""
    if CHROMIUM is None:
        pytest.skip("no browser is installed: apt-get install chromium")
    caught = page.replace("<head>", f"<head>{CATCH}", 1)
    frames = "".join(
        f"<iframe width={w} height=900 style='border:0' srcdoc='{html.escape(caught)}'></iframe>"
        for w in widths
    )
    file = folder / "look.html"
    file.write_text(f"<!doctype html><html><body>{frames}{LOOK}</body></html>", encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run(
        [*command, file.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    text = re.search(r"FOUND(.*)END", done.stdout)
    assert text is not None, done.stderr[-2000:]
    return json.loads(html.unescape(text[1]))
