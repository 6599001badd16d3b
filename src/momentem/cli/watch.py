"""`momentem watch`: follow a run that another process is writing.

momentem watch runs/first                       a line every few seconds, until the run is whole
momentem watch runs/first --html                a page on http://127.0.0.1:8765 that renews itself
"""

import argparse
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from momentem.checks import check_positive
from momentem.cli.runs import load_quietly
from momentem.predictive import page
from momentem.run.diagnostics import convergence

__all__ = ["add_parser", "open_server", "state_of"]

PORT = 8765


def add_parser(commands: Any) -> None:
    """Add the command to those of `momentem`."""
    parser = commands.add_parser("watch", help="follow a run that is going")
    parser.add_argument("folder", metavar="RUN", help="written by sample(out=…)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between looks (5)")
    parser.add_argument("--html", action="store_true", help="serve a page on this machine only")
    parser.add_argument("--port", type=int, default=PORT, help=f"of the page ({PORT})")
    parser.set_defaults(run=_watch)


def _watch(given: argparse.Namespace) -> None:
    check_positive(every=given.every)
    folder = Path(given.folder)
    load_quietly(folder)
    try:
        if given.html:
            with open_server(folder, given.port, given.every) as server:
                print(f"http://127.0.0.1:{server.server_port} (Ctrl-C ends it)", flush=True)
                server.serve_forever()
        while True:
            line, is_whole = state_of(load_quietly(folder))
            print(line, flush=True)
            if is_whole:
                return
            time.sleep(given.every)
    except KeyboardInterrupt:
        return


def state_of(trace: Any) -> tuple[str, bool]:
    """Return a line on how far a run is and how it goes, and whether it is whole."""
    is_whole = not trace.attrs.get("is_interrupted", 1)
    seconds = f"{trace.attrs.get('sampling_time', 0):.0f} s"
    if "posterior" not in trace.children:
        group = trace.children.get("warmup_posterior")
        done = 0 if group is None else group.sizes["draw"]
        return f"warm-up: {done:,} iterations, {seconds}", is_whole
    sizes = trace["posterior"].sizes
    parts = [f"{sizes['chain']} x {sizes['draw']:,} draws, {seconds}"]
    found = convergence(trace)
    if found is not None:
        least = min(size for _, size in found.sizes.values())
        parts.append(f"R-hat {found.rhat[1]:.3f} ({found.rhat[0]}), ESS {least:,.0f}")
    stats = trace["sample_stats"].to_dataset().isel(draw=slice(-1000, None))
    if "acceptance_rate" in stats:
        parts.append(f"acceptance {float(stats['acceptance_rate'].mean()):.2f}")
    parts.append(f"{trace.attrs.get('num_divergences', 0)} divergences")
    return ", ".join(parts) + (", whole" if is_whole else ""), is_whole


def open_server(folder: Path, port: int, every: float) -> ThreadingHTTPServer:
    """Return a server of the report of a run, for this machine only. It reads, and writes
    nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/":
                self.send_error(404)
                return
            if (self.headers.get("Host") or "").rpartition(":")[0] not in (
                "127.0.0.1",
                "localhost",
            ):
                self.send_error(403)  # another site's script, by a name that leads here
                return
            try:
                trace = load_quietly(folder)
                refresh = max(1, round(every)) if trace.attrs.get("is_interrupted", 1) else 0
                if "posterior" in trace.children:
                    text = page(trace, refresh=refresh)
                else:
                    again = f"<meta http-equiv='refresh' content='{refresh or 1}'>"
                    text = f"<!doctype html>{again}<p>{state_of(trace)[0]}"
            except (ValueError, OSError) as error:
                self.send_error(500, str(error).splitlines()[0][:200])
                return
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
