"""Run logs that somebody has tampered with: each case damages a copy of a good log.

An attacker can compute hashes too. So most changed segments are renamed to the hash of their new
contents ("signed"), and only the checks behind the hash are left to refuse them.
"""

import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file


class Payload:
    """Make a folder when unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.makedirs, (self.marker,)


def segments(folder):
    return sorted(folder.glob("*.safetensors"))


def signed(path):
    """Rename a segment to the hash of its bytes."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.rename(path.with_name(f"{path.name[:9]}{digest}.safetensors"))


def replace(path, content, sign=True):
    path.write_bytes(content)
    if sign:
        signed(path)


def opened(path):
    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(  # noqa: SIM118
            file.metadata()["momentem"]
        )


def rewritten(change):
    """Change the arrays or the description of the newest segment, and sign it."""

    def apply(folder, marker):
        path = segments(folder)[-1]
        arrays, about = opened(path)
        change(arrays, about)
        save_file(arrays, path, metadata={"momentem": json.dumps(about)})
        signed(path)

    return apply


def header(change):
    """Change the JSON header of the newest segment, and sign it."""

    def apply(folder, marker):
        path = segments(folder)[-1]
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        table = json.loads(content[8 : 8 + length])
        change(table)
        text = json.dumps(table).encode()
        replace(path, struct.pack("<Q", len(text)) + text + content[8 + length :])

    return apply


def newest(content, sign=True):
    """Replace the bytes of the newest segment."""

    def apply(folder, marker):
        path = segments(folder)[-1]
        replace(path, content(path.read_bytes(), marker), sign)

    return apply


def manifest(change):
    def apply(folder, marker):
        table = json.loads((folder / "manifest.json").read_text())
        table |= change
        (folder / "manifest.json").write_text(json.dumps(table))

    return apply


def manifest_is(content):
    def apply(folder, marker):
        (folder / "manifest.json").write_bytes(content(marker))

    return apply


def flipped(content, place):
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def pickled(marker):
    return pickle.dumps(Payload(marker))


def npz(marker):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        array = np.array([Payload(marker)], dtype=object)
        inner = io.BytesIO()
        np.save(inner, array, allow_pickle=True)
        archive.writestr("draws.x.npy", inner.getvalue())
    return buffer.getvalue()


def set_key(name, value):
    def change(arrays, about):
        about[name] = value

    return change


def to_array(name, make):
    def change(arrays, about):
        arrays[name] = np.ascontiguousarray(make(arrays.get(name)))

    return change


def first_draw(table):
    return next(value for name, value in table.items() if name.startswith("draws."))


def swap_last_two(folder, marker):
    a, b = segments(folder)[-2:]
    a.rename(folder / "aside")
    b.rename(b.with_name(a.name[:9] + b.name[9:]))
    (folder / "aside").rename(folder / (b.name[:9] + a.name[9:]))


def link_outside(folder, marker):
    path = segments(folder)[-1]
    outside = Path(f"{marker}.outside")
    path.rename(outside)
    path.symlink_to(outside)


def pipe(folder, marker):
    path = segments(folder)[-1]
    path.unlink()
    os.mkfifo(path)


def folder_for_file(folder, marker):
    path = segments(folder)[-1]
    path.unlink()
    path.mkdir()


def manifest_link(folder, marker):
    outside = Path(f"{marker}.outside")
    (folder / "manifest.json").rename(outside)
    (folder / "manifest.json").symlink_to(outside)


def huge_header(folder, marker):
    """Write a header of 200 MB as a hole, for which the file system stores nothing."""
    path = segments(folder)[-1]
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", 200 * 2**20))
        file.truncate(201 * 2**20)


def state_name(arrays):
    return next(name for name in arrays if name.startswith("state."))


def wrong_state(arrays, about):
    name = state_name(arrays)
    arrays[name] = np.ascontiguousarray(arrays[name][:-1])


def missing_state(arrays, about):
    del arrays[state_name(arrays)]


# name -> what it does to a folder; a path at which code that must not run would make a folder
HOSTILE = {
    "pickle for a segment": newest(lambda _, marker: pickled(marker)),
    "pickle in the description": rewritten(
        lambda arrays, about: about.update(state=pickled("/nowhere").hex(), number=None)
    ),
    "pickle for the manifest": manifest_is(pickled),
    "archive with a pickle": newest(lambda _, marker: npz(marker)),
    "gzip bomb": newest(lambda *_: gzip.compress(bytes(2**24))),
    "manifest empty": manifest_is(lambda _: b""),
    "manifest not JSON": manifest_is(lambda _: b"\xff\xfe{"),
    "manifest a list": manifest_is(lambda _: b"[1, 2]"),
    "manifest nested 10^5 deep": manifest_is(lambda _: b"[" * 10**5),
    "manifest too large": manifest_is(lambda _: b" " * (2**24 + 1)),
    "manifest of another format": manifest({"format": 99}),
    "manifest of 10^12 chains": manifest({"num_chains": 10**12}),
    "manifest of -1 chains": manifest({"num_chains": -1}),
    "manifest with a text for the seed": manifest({"seed": "__import__('os')"}),
    "manifest with a path for a name": manifest({"keep": ["../../x"]}),
    "manifest with objects for draws": manifest({"forms": {"x": ["O", [3]], "y": ["O", []]}}),
    "manifest with a negative shape": manifest({"forms": {"x": ["float64", [-3]]}}),
    "manifest that leads out": manifest_link,
    "segment of no bytes": newest(lambda *_: b""),
    "segment cut in half": newest(lambda content, _: content[: len(content) // 2], sign=False),
    "segment cut in half, signed": newest(lambda content, _: content[: len(content) // 2]),
    "segment without its last byte": newest(lambda content, _: content[:-1]),
    "segment with a byte more": newest(lambda content, _: content + b"\0"),
    "bit flipped in the draws": newest(lambda content, _: flipped(content, -5), sign=False),
    "bit flipped in the header": newest(lambda content, _: flipped(content, 40), sign=False),
    "bit flipped in the length": newest(lambda content, _: flipped(content, 3)),
    "header of 2^63 bytes": newest(lambda content, _: struct.pack("<Q", 2**63) + content[8:]),
    "header of 200 MB": huge_header,
    "shape of 10^15": header(lambda table: first_draw(table).update(shape=[10**15])),
    "offsets past the end": header(lambda table: first_draw(table).update(data_offsets=[0, 2**40])),
    "overlapping offsets": header(lambda table: first_draw(table).update(data_offsets=[0, 8])),
    "unknown dtype": header(lambda table: first_draw(table).update(dtype="OBJECT")),
    "path for an array's name": rewritten(to_array("../../evil", lambda _: np.zeros(1))),
    "stranger among the draws": rewritten(to_array("draws.z", lambda _: np.zeros((1, 2)))),
    "draws turned round": rewritten(to_array("draws.x", lambda x: x.swapaxes(0, 1))),
    "draws in float32": rewritten(to_array("draws.x", lambda x: x.astype("f4"))),
    "description with a text for a number": rewritten(set_key("first", "0")),
    "description with other rows": rewritten(set_key("rows", 10**9)),
    "description with odd troubles": rewritten(set_key("troubles", [[1], {"a": 2}])),
    "state of another shape": rewritten(wrong_state),
    "state without a leaf": rewritten(missing_state),
    "segments in another order": swap_last_two,
    "segment missing": lambda folder, marker: segments(folder)[1].unlink(),
    "segment that leads out": link_outside,
    "pipe for a segment": pipe,
    "folder for a segment": folder_for_file,
}
