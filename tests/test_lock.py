"""The lock of the development environment, and the bill of materials that is made of it."""

import json
import re
import subprocess
import sys

import pytest

import check_lock
import pins
import sbom


def test_the_lock_and_the_project_agree():
    assert list(check_lock.disagreements(pins.read_lock())) == []


def test_a_pin_that_is_missing_old_or_left_over_is_named():
    found = pins.read_lock()
    del found["scipy"]
    found["stranger"] = found["jaxtyping"]
    found["jax"] = pins.Pin("0.1.0", found["jax"].hashes)
    text = "\n".join(check_lock.disagreements(found))
    assert re.search("scipy.* is needed, and is not pinned", text)
    assert "jax is pinned to 0.1.0, and jax>=" in text
    assert "stranger is pinned, and nothing needs it" in text


@pytest.mark.parametrize(
    "line",
    [
        "jax==0.10.2",
        "jax>=0.10.2 --hash=sha256:" + 64 * "0",
        "jax==0.10.2 --hash=md5:" + 32 * "0",
        "--extra-index-url somewhere",
        "jax @ somewhere",
        "-r other.txt",
    ],
)
def test_anything_but_a_version_with_its_hash_is_refused(line):
    with pytest.raises(ValueError, match=r"name==version --hash=sha256"):
        pins.read_lock(line)


def test_what_the_makefile_installs_is_hashed():
    text = (pins.ROOT / "Makefile").read_text()
    assert "--require-hashes --only-binary :all: --requirement requirements-dev.txt" in text
    assert "--no-deps --no-build-isolation --no-index --editable ." in text


def test_the_bill_of_materials_lists_all_that_is_needed(tmp_path):
    path = tmp_path / "dist/bill.json"
    subprocess.run([sys.executable, sbom.__file__, path], check=True, capture_output=True)
    bill = json.loads(path.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill == sbom.bill()  # the same bytes every time
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    assert set(scopes) == set(pins.read_lock())
    assert (scopes["jax"], scopes["pymc"], scopes["ruff"]) == ("required", "optional", "excluded")
    own = bill["metadata"]["component"]
    assert own["version"] == sbom.project_version() != ""
    refs = [each["ref"] for each in bill["dependencies"]]
    assert len(refs) == len(set(refs)) == len(scopes) + 1
    assert {ref for each in bill["dependencies"] for ref in each["dependsOn"]} <= set(refs)
    (edges,) = (each["dependsOn"] for each in bill["dependencies"] if each["ref"] == own["bom-ref"])
    assert any(ref.startswith("pkg:pypi/jax@") for ref in edges)
