"""Imports go down only, kernels and EM do not see each other, and no function hides a module."""

import ast
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import momentem

SOURCE = Path(momentem.__file__).parent
LOW = {"types", "pytrees", "checks", "files", "moments", "_version"}
GROUND = LOW | {"xla", "devices", "masses", "maps", "targets"}
CORE = GROUND | {"kernels", "em", "riemannian", "tuning", "samplers", "run", "sampling"}
SEES = {
    **dict.fromkeys(LOW, LOW),
    **dict.fromkeys(["xla", "devices"], LOW | {"xla", "devices"}),
    **dict.fromkeys(["masses", "maps"], GROUND - {"targets"}),
    "targets": GROUND,
    "kernels": GROUND | {"kernels"},
    "em": GROUND | {"em"},
    **dict.fromkeys(["riemannian", "tuning"], GROUND | {"kernels", "em", "riemannian", "tuning"}),
    "samplers": CORE - {"run", "sampling"},
    "run": GROUND | {"run"},
    "sampling": CORE,
    "testing": GROUND,
    **dict.fromkeys(["bridges", "predictive"], CORE | {"bridges", "predictive"}),
    "topics": CORE | {"topics"},
    "reproduce": CORE | {"topics", "reproduce", "bridges"},
    "cli": CORE | {"bridges", "predictive", "topics", "reproduce", "cli"},
}


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1:2] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            package, *rest = node.module.split(".")
            if package == "momentem":
                yield from [rest[:1]] if rest else ([alias.name] for alias in node.names)


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_go_down_only(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    seen = {parts[0] for parts in imported_rooms(path) if parts} & set(SEES)
    assert seen <= SEES[room], f"{room} must not import {sorted(seen - SEES[room])}"


def test_the_top_level_is_small():
    assert len(list(SOURCE.glob("*.py"))) <= 10


def test_no_module_is_hidden_by_a_function_of_its_name():
    for found in pkgutil.walk_packages([str(SOURCE)], "momentem."):
        package, _, name = found.name.rpartition(".")
        attribute = getattr(importlib.import_module(package), name, None)
        assert attribute is None or isinstance(attribute, ModuleType), f"{found.name} is hidden"


def test_the_rule_would_notice():
    assert ["targets"] in list(imported_rooms(SOURCE / "kernels" / "_hmc.py"))
    assert not {"kernels", "em"} <= SEES["kernels"]
    assert not {"kernels", "em"} <= SEES["em"]
