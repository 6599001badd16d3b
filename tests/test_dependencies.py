"""What is imported is declared, with lower bounds that `make test-minimum` installs."""

import ast
import importlib
import pkgutil
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import momentem

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
TOOLS = {"docs", "dev"}  # of those who work on the library, who have requirements-dev.txt
CAPS = {"arviz"}  # versions of others that go together, with upper bounds; nothing imports them
# of `make test-minimum`; what is in `peers` alone needs a newer JAX or is only compared with
TESTED_EXTRAS = ["plots", "pymc", "storage", "topics"]
DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # where the names differ


def requirements(extras):
    """The declared ones, without those that name other extras of ours."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    found = [Requirement(line) for line in lines]
    return [each for each in found if each.name != PROJECT["name"]]


def lower_bounds(extras):
    """{distribution: version}; each is declared once, by one lower bound and nothing else."""
    bounds = {}
    for requirement in requirements(extras):
        (bound,) = requirement.specifier
        assert bound.operator == ">=", f"{requirement} must have a lower bound"
        assert canonicalize_name(requirement.name) not in bounds, f"{requirement} is declared twice"
        bounds[canonicalize_name(requirement.name)] = Version(bound.version)
    return bounds


def imports(path):
    """(top-level name, whether it is imported with the module) of whatever a file imports, also
    by `import_module("…")` and by `imported("…")`, which is made of it."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(name), level=0):
                names = [name]
            case ast.Call(
                func=ast.Name(id="import_module" | "imported")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name))],
            ):
                names = [name]
        for name in names:
            yield name.partition(".")[0], node in tree.body


def third_party():
    """Of the whole library."""
    ours = {"momentem", *sys.stdlib_module_names}
    paths = (ROOT / "src/momentem").rglob("*.py")
    return {found for path in paths for found in imports(path) if found[0] not in ours}


def test_what_is_imported_is_declared():
    """With a module: as a dependency, so that every module can be imported without the extras."""
    declared = lower_bounds(()), lower_bounds(set(EXTRAS) - TOOLS - CAPS)
    missing = {
        name
        for name, is_always in third_party()
        if canonicalize_name(DISTRIBUTIONS.get(name, name)) not in declared[not is_always]
    }
    assert not missing


def test_what_is_declared_as_needed_is_imported():
    imported = {canonicalize_name(DISTRIBUTIONS.get(name, name)) for name, _ in third_party()}
    assert set(lower_bounds(())) <= imported


def test_the_minimum_requirements_are_the_lower_bounds():
    minimum = {}
    for line in (ROOT / "requirements-minimum.txt").read_text().splitlines():
        if not line.startswith("#"):
            requirement = Requirement(line)
            (pin,) = requirement.specifier
            assert pin.operator == "==", f"{line} must be one version"
            minimum[canonicalize_name(requirement.name)] = Version(pin.version)
    assert minimum == lower_bounds(TESTED_EXTRAS)
    assert f"--editable '.[{','.join(TESTED_EXTRAS)}]'" in (ROOT / "Makefile").read_text()


def modules():
    return [each.name for each in pkgutil.walk_packages(momentem.__path__, "momentem.")]


@pytest.mark.parametrize("name", modules())
def test_every_module_can_be_imported(name):
    importlib.import_module(name)
