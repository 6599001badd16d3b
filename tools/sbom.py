"""Write a software bill of materials: CycloneDX 1.6, from the lock and what is installed.

    python tools/sbom.py dist/momentem.cdx.json

It lists what momentem needs to run (scope "required"), what its extras add ("optional"), and what
only building, testing and documenting it take ("excluded"), each with version, SHA-256, licence and
what it depends on. It needs no network, and the same lock gives the same bytes.
"""

import json
import sys
import uuid
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pins import PROJECT, ROOT, closure, declared, needed, read_lock

FOR_WORK = {"dev", "docs"}  # extras of those who work on the library


def project_version() -> str:
    """Return the version of momentem in this checkout."""
    text = (ROOT / "src/momentem/_version.py").read_text()
    return text.rsplit("__version__ = ", 1)[1].strip().strip('"')


def licence_of(name: str) -> list[dict[str, Any]]:
    """Return the licence that a distribution names."""
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return []
    if expression := about.get_all("License-Expression"):
        return [{"expression": expression[0]}]
    classes = about.get_all("Classifier") or []
    names = [each.split(" :: ")[-1] for each in classes if each.startswith("License :: ")]
    (short, *_) = about.get_all("License") or [""]
    if not names and short and len(short) < 80:
        names = [short]
    return [{"license": {"name": each}} for each in sorted(set(names))]


def reference(name: str, version: str) -> str:
    """Return the package URL of a distribution."""
    return f"pkg:pypi/{name}@{version}"


def bill() -> dict[str, Any]:
    """Return the bill of materials."""
    pins, name = read_lock(), PROJECT["name"]
    extras = set(PROJECT["optional-dependencies"]) - FOR_WORK
    required, optional = closure(declared([])), closure(declared(extras))
    wanted = closure(declared(["dev"]))
    own = reference(name, project_version())
    components, edges = [], [{"ref": own, "dependsOn": references(declared([]), pins)}]
    for each, pin in sorted(pins.items()):
        scope = "required" if each in required else "optional" if each in optional else "excluded"
        components.append(
            {
                "type": "library",
                "bom-ref": reference(each, pin.version),
                "name": each,
                "version": pin.version,
                "scope": scope,
                "purl": reference(each, pin.version),
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in pin.hashes],
                "licenses": licence_of(each),
            }
        )
        of_all = [more for one in wanted.get(each, [Requirement(each)]) for more in needed(one)]
        below = references(of_all, pins)
        edges.append({"ref": reference(each, pin.version), "dependsOn": below})
    table: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": name,
                "version": project_version(),
                "purl": own,
                "licenses": [{"license": {"id": PROJECT["license"]}}],
            }
        },
        "components": components,
        "dependencies": edges,
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(table, sort_keys=True))
    return table | {"serialNumber": f"urn:uuid:{number}"}


def references(requirements: Any, pins: Any) -> list[str]:
    """Return the package URLs of those requirements that are pinned."""
    names = {canonicalize_name(each.name) for each in requirements} & set(pins)
    return sorted(reference(name, pins[name].version) for name in names)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill(), indent=1) + "\n")
    print(f"{len(bill()['components'])} components in {path}")
