"""Files that are no files, and files that are written by halves."""

import os

import pytest

from momentem.files import TEMPORARY, open_file, publish, read_table


def test_a_file_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    with open_file(tmp_path / "a", 3, tmp_path) as file:
        assert file.read() == b"one"


@pytest.mark.skipif(os.name != "posix", reason="has no such files")
def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "out").symlink_to(__file__)
    for name in ("pipe", "zeros", "."):
        with pytest.raises(ValueError, match="must be a regular file"):
            open_file(tmp_path / name, 10**9)
    with pytest.raises(ValueError, match="a file outside the folder"):
        open_file(tmp_path / "out", 10**9, tmp_path)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10**13)
    with pytest.raises(ValueError, match="at most 1000000000 bytes, got 10000000000000"):
        open_file(tmp_path / "sparse", 10**9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": Infinity}', "holds Infinity"),
        (b'{"a": NaN}', "holds NaN"),
        (b"[" * 10**5, "nested too deep"),
        (b"[1]", "not a table"),
        (b"\xff", "must be JSON"),
    ],
)
def test_odd_json_is_refused(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "a.json", 10**6)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    publish([b"old"], tmp_path / "a")

    def full(descriptor, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        publish([b"new"], tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert not (tmp_path / TEMPORARY).exists()
