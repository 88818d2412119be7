"""docs/python-api.md: the public names of tightship_offload, from their source. Written by generate_docs.py.

The source is read, not imported: that takes no torch.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import tightship_offload

_HEAD = """# Python API

What a training script may use of `tightship_offload`; nothing else of the package is promised. How it works is in
[the offload runtime](offload-runtime.md), what to use with a trainer in
[offload with a trainer](offload-integrations.md). `tightship analyze` from Python: [analyze](analyze.md#from-python).

```python
import tightship_offload as offload

model, optimizer = offload.apply(model, optimizer, "plan.yaml")
```
"""
_RETURNED = {"engine_of": ("Engine", {"drain", "remove", "steps_done"})}
"""Function → the class of what it returns, which has no public name, and what of it is for scripts."""
_FIELD = re.compile(r"^:(param|raises|returns)\s*([^:]*):\s*")
_HERE = Path(tightship_offload.__file__).parent
_LINE = 100


def page() -> str:
    """The page: functions first, then classes, each by name."""
    nodes = {name: _definition(name, tightship_offload._HOMES[name]) for name in tightship_offload.__all__}
    parts = [_HEAD]
    for name, node in sorted(nodes.items(), key=lambda item: (isinstance(item[1], ast.ClassDef), item[0].lower())):
        parts.append(_drawn(node))
        if name in _RETURNED:
            returned, promised = _RETURNED[name]
            kind = _definition(returned, tightship_offload._HOMES[name])
            parts += [_method(returned, one) for one in _public_methods(kind) if one.name in promised]
    return "\n".join(parts)


def _definition(name: str, module: str) -> ast.FunctionDef | ast.ClassDef:
    tree = ast.parse((_HERE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    (found,) = (one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name)
    return found


def _drawn(node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"## {node.name}\n\n```python\n{_signature(node)}\n```\n\n{_text(node)}"
    parts = [f"## {node.name}\n", _text(node)]
    if rows := list(_fields(node)):
        parts += ["| field | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"]
    parts += [_method(node.name, one) for one in _public_methods(node)]
    return "\n".join(parts)


def _method(kind: str, method: ast.FunctionDef) -> str:
    return f"### {kind}.{method.name}\n\n{_signature_of(method)}{_text(method)}"


def _public_methods(node: ast.AST) -> Iterator[ast.FunctionDef]:
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            yield one


def _signature_of(method: ast.FunctionDef) -> str:
    if any(isinstance(one, ast.Name) and one.id == "property" for one in method.decorator_list):
        return f"A property: `{ast.unparse(method.returns) if method.returns else 'Any'}`.\n\n"
    return f"```python\n{_signature(method)}\n```\n\n"


def _signature(node: ast.FunctionDef) -> str:
    """On one line where that is short, else with a line for each argument."""
    arguments, returns = ast.unparse(node.args), f" -> {ast.unparse(node.returns)}" if node.returns else ""
    split = [_spaced(one) for one in _split(arguments) if one not in ("self", "cls", "")]
    line = f"{node.name}({', '.join(split)}){returns}"
    if len(line) <= _LINE:
        return line
    lines = "".join(f"    {one},\n" for one in split)
    return f"{node.name}(\n{lines}){returns}"


def _spaced(argument: str) -> str:
    """`x: int=1` as people write it."""
    return re.sub(r"^(\*{0,2}\w+: .*?)=(?=[^=]*$)", r"\1 = ", argument)


def _split(arguments: str) -> Iterator[str]:
    """The arguments; a comma within brackets parts none."""
    depth, begin = 0, 0
    for place, char in enumerate(arguments):
        depth += (char in "[({") - (char in "])}")
        if char == "," and not depth:
            yield arguments[begin:place].strip()
            begin = place + 1
    yield arguments[begin:].strip()


def _text(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The docstring; its `:param x:` and `:raises X:` as a list."""
    prose: list[str] = []
    fields: list[str] = []
    for line in inspect.cleandoc(ast.get_docstring(node) or "").split("\n"):
        if match := _FIELD.match(line):
            kind, name = match.groups()
            said = {"param": f"`{name}`: ", "raises": f"raises `{name}`: ", "returns": "returns "}[kind]
            fields.append(f"- {said}{line[match.end() :]}")
        elif fields and line.startswith(" "):
            fields[-1] += f" {line.strip()}"
        else:
            prose.append(line)
    return "\n".join(prose).strip() + "\n" + (f"\n{chr(10).join(fields)}\n" if fields else "")


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for one, after in pairwise([*node.body, ast.Pass()]):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    meaning = " ".join(text.split())
                case _:
                    meaning = ""
            kind = one.annotation
            if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Annotated":
                kind = kind.slice.elts[0] if isinstance(kind.slice, ast.Tuple) else kind
            default = f"`{ast.unparse(one.value)}`" if one.value is not None else "required"
            cells = (f"`{one.target.id}`", f"`{ast.unparse(kind)}`", default, meaning)
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
