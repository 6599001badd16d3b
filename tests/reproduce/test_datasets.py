"""Files are found, downloaded and checked; what is not the original is refused."""

import hashlib
import http.server
import io
import threading
import zipfile

import numpy as np
import pytest

from momentem.reproduce import datasets

CONTENT = b"1 2 0\n3 4 1\n"


def archive(**members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name.replace("_", "."), content)
    return packed.getvalue()


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A server on this machine with what `put` gives it; the cache is empty and MOMENTEM_DATA is
    not set."""
    content, requests = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_response(200 if self.path in content else 404)
            self.end_headers()
            self.wfile.write(content.get(self.path, b""))

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # between polls
    thread.start()
    monkeypatch.setenv("MOMENTEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MOMENTEM_DATA", raising=False)

    def original(packed=None, member="small.dat", most_bytes=2_000):
        if packed is not None:
            content["/small.zip"] = packed
        url = f"http://127.0.0.1:{server.server_port}/small.zip"
        return datasets.Original(
            "small/small.dat", url, member, hashlib.sha256(CONTENT).hexdigest(), most_bytes
        )

    yield original, requests, tmp_path
    server.shutdown()
    thread.join()
    server.server_close()


def test_is_downloaded_once_and_only_the_named_member(served):
    original, requests, folder = served
    small = original(archive(small_dat=CONTENT, other_txt=b"not asked for"))
    path = datasets.fetch(small)
    assert path.read_bytes() == CONTENT
    assert datasets.fetch(small) == path
    assert requests == ["/small.zip"]
    assert [each.name for each in (folder / "cache/small").iterdir()] == ["small.dat"]


def test_folder_comes_first(served, monkeypatch):
    original, requests, folder = served
    (folder / "data/small").mkdir(parents=True)
    (folder / "data/small/small.dat").write_bytes(CONTENT)
    monkeypatch.setenv("MOMENTEM_DATA", str(folder / "data"))
    assert datasets.fetch(original()) == folder / "data/small/small.dat"
    assert requests == []


@pytest.mark.parametrize(
    ("packed", "error", "message"),
    [
        (archive(small_dat=b"1 2 1\n"), ValueError, "must have the SHA-256"),
        (archive(small_dat=bytes(100_000)), ValueError, "at most 2000 bytes, got 100000"),
        (bytes(5_000), FileNotFoundError, "more than 2000 bytes"),
        (archive(other_dat=CONTENT), ValueError, "small.dat"),
        (b"no archive", ValueError, "not a zip"),
        (None, FileNotFoundError, "set MOMENTEM_DATA"),
    ],
    ids=["changed", "bomb", "large", "other member", "no archive", "absent"],
)
def test_what_is_not_the_original_is_refused(served, packed, error, message):
    original, _, folder = served
    with pytest.raises(error, match=message):
        datasets.fetch(original(packed))
    assert not [path for path in (folder / "cache").rglob("*") if path.is_file()]
    if packed is not None:  # and nothing was kept that fails for ever
        assert datasets.fetch(original(archive(small_dat=CONTENT))).read_bytes() == CONTENT


def test_a_wrong_file_in_the_cache_is_downloaded_again(served):
    """As earlier versions have left it there."""
    original, _, folder = served
    (folder / "cache/small").mkdir(parents=True)
    (folder / "cache/small/small.dat").write_bytes(b"wrong")
    assert datasets.fetch(original(archive(small_dat=CONTENT))).read_bytes() == CONTENT


def test_changed_file_in_the_folder_is_refused(served, monkeypatch):
    original, _, folder = served
    (folder / "small").mkdir()
    (folder / "small/small.dat").write_bytes(CONTENT + b"5 6 0\n")
    monkeypatch.setenv("MOMENTEM_DATA", str(folder))
    with pytest.raises(ValueError, match="delete it, or replace"):
        datasets.fetch(original())


def test_labels_of_the_synthetic_data():
    noisy, sure = (datasets.synthetic_logistic(seed=1, is_noisy=noisy) for noisy in (True, False))
    np.testing.assert_array_equal(noisy.x, sure.x)
    logit = sure.x @ [1.0, -1.0]
    np.testing.assert_array_equal(sure.y, logit > 0)
    assert 0.1 < np.mean(noisy.y != sure.y) < 0.2
