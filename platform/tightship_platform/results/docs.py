"""The docstrings under a record's fields, which the OpenAPI document and docs/cli.md repeat."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from functools import cache
from itertools import pairwise
from pathlib import Path


def field_docs(kind: type) -> dict[str, str]:
    """Field → its docstring, those of base classes included; a field without one is left out."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _module_docs(Path(inspect.getfile(base))).get(base.__name__, {})
    return {field.name: found[field.name] for field in dataclasses.fields(kind) if field.name in found}


@cache
def _module_docs(path: Path) -> dict[str, dict[str, str]]:
    """Class → field → docstring, of all classes of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: _class_docs(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_docs(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, text in pairwise(node.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = inspect.cleandoc(words)
    return found
