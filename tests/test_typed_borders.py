"""What passes between packages is typed: no bare JSON in the signature of a function that another package imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest
from source_tree import PACKAGES, source_files

UNTYPED = re.compile(r"\b(?:dict|Mapping)\[(?:str|Any), (?:Any|object)\]")
MAY_CROSS = {
    "tightship_platform.results.codec.as_json",  # makes JSON
    "tightship_platform.results.codec.fields_of",  # one level of it
    "tightship_platform.client.ApiClient",  # queries and bodies of requests, encoded at once
    "tightship_platform.database.upsert.add_missing",  # rows of any table
    "tightship_offload.plan.file.parse_mapping",  # a file as it was parsed, which the schema then validates
    "tightship_offload.plan.file.read_mapping",
    "tightship_offload.plan.schema.Section",  # the validator itself
    "tightship_offload.plan.schema.Nested",
}
"""Module and name of what may take or give untyped JSON: where JSON is made, or where it is validated."""
MOST = {
    "tightship_platform": 14,
    "tightship_collectors": 7,
    "tightship_analyzers": 23,
    "tightship_dashboard": 8,
    "tightship_offload": 37,
}
"""How often each package may still write it: what other libraries define (Plotly, AG Grid, OpenAPI, drivers) and rows
of the database. Lower a number when its package writes it less often; never raise one."""
SLACK = 10
"""How far all limits together may lie above what is written."""


@dataclass
class Module:
    """What a file defines and imports."""

    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    """Name → the annotation that it stands for."""
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name → module and name there; the name is empty for a module."""
    used: set[tuple[str, str]] = field(default_factory=set)
    """Module and attribute, of `module.attribute`."""


@cache
def modules() -> dict[str, Module]:
    paths = source_files()
    return {name: _read(ast.parse(path.read_text(encoding="utf-8")), set(paths)) for name, path in paths.items()}


def _read(tree: ast.Module, known: set[str]) -> Module:
    module = Module()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            module.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            module.classes[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            module.aliases[node.targets[0].id] = ast.unparse(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                target = (whole, "") if whole in known else (node.module, alias.name)
                module.imports[alias.asname or alias.name] = target
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in module.imports:
            target, name = module.imports[node.value.id]
            if not name:
                module.used.add((target, node.attr))
    return module


def home_of(module: str, name: str) -> tuple[str, str]:
    """Where a name is defined that the module may only import."""
    again = modules()[module].imports.get(name)
    return home_of(*again) if again is not None and again[1] else (module, name)


def crossing() -> Iterator[tuple[str, str, str]]:
    """(importing module, module, name) of everything that one package takes from another, re-exports followed."""
    for importer, module in modules().items():
        taken = {target for target in module.imports.values() if target[1]} | module.used
        for pair in sorted(taken):
            target, name = home_of(*pair)
            if target.partition(".")[0] != importer.partition(".")[0]:
                yield importer, target, name


def annotations(node: ast.AST) -> Iterator[str]:
    """Of a function's signature, or of a class's public methods and, where it is a dataclass, its fields."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        yield from (ast.unparse(one.annotation) for one in every if one is not None and one.annotation is not None)
        if node.returns is not None:
            yield ast.unparse(node.returns)
    elif isinstance(node, ast.ClassDef):
        is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and is_dataclass:
                yield ast.unparse(part.annotation)
            elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not part.name.startswith("_"):
                yield from annotations(part)


def written_out(annotation: str, module: Module) -> str:
    """The annotation with the aliases in it, of this module or imported, replaced by what they stand for."""
    for node in ast.walk(ast.parse(annotation.strip("'\""), mode="eval")):
        if isinstance(node, ast.Name):
            imported = module.imports.get(node.id)
            home, name = home_of(*imported) if imported is not None and imported[1] else ("", node.id)
            stands_for = (modules().get(home, module) if home else module).aliases.get(name, "")
            if UNTYPED.search(stands_for):
                return stands_for
    return annotation


def test_nothing_untyped_crosses_a_package() -> None:
    found: set[str] = set()
    looked_at = 0
    for _importer, target, name in crossing():
        module = modules()[target]
        node = module.functions.get(name) or module.classes.get(name)
        if node is not None:
            looked_at += 1
            if any(UNTYPED.search(written_out(one, module)) for one in annotations(node)):
                found.add(f"{target}.{name}")
    assert looked_at > 300
    assert found == MAY_CROSS


@pytest.mark.parametrize("untyped", ["dict[str, Any]", "Mapping[str, object]", "dict[Any, Any]", "dict[str, object]"])
def test_an_alias_hides_nothing(untyped: str) -> None:
    module = _read(ast.parse(f"Row = {untyped}\ndef put(rows: list[Row]) -> None: ...\n"), set())
    found = [written_out(one, module) for one in annotations(module.functions["put"])]
    assert found == [untyped, "None"]
    assert [bool(UNTYPED.search(one)) for one in found] == [True, False]


def count_of(package: str) -> int:
    files = (PACKAGES[package] / package).rglob("*.py")
    return sum(len(UNTYPED.findall(path.read_text(encoding="utf-8"))) for path in files)


@pytest.mark.parametrize("package", PACKAGES)
def test_untyped_json_only_gets_rarer(package: str) -> None:
    assert count_of(package) <= MOST[package]


def test_untyped_json_is_rare() -> None:
    """One in 500 lines at most; and a limit that is no longer needed is lowered."""
    count = sum(map(count_of, PACKAGES))
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in source_files().values())
    assert count * 500 <= lines
    assert sum(MOST.values()) - count <= SLACK
