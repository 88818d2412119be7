"""Every Python file that our docs, docstrings and comments name exists: a reader who follows a name finds the file."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator

import pytest
from source_tree import ROOT

NAME = re.compile(r"[\w./-]*\w\.py\b")
NOT_OURS = {
    # Scripts of users, in examples.
    *("train.py", "/job/train.py", "src/train.py", "data.py", "upload.py", "count.py", "checkpoint.py"),
    *("helpers.py", "utils.py", "tools/utils.py"),  # what nobody should write, or what other projects have
    *("threading.py", "platform/__init__.py"),  # of the standard library, and what must not be
}
LIBRARIES = ("torch/", "torchtitan/", "transformers/")
HISTORY = ("CHANGELOG.md", "docs/decisions/0014-tests-and-their-successors.md")
"""They may name what is gone."""
OTHERS = ("tests/data/", "docs/reports/")
"""Recordings of jobs, and what our report says of them, name the scripts of these."""


def tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of a Python file's comments, and of the strings that stand for themselves: docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def ends_of(paths: list[str]) -> set[str]:
    """Each path in full and from each of its folders on."""
    return {"/".join(parts[first:]) for path in paths for parts in [path.split("/")] for first in range(len(parts))}


def missing(text: str, paths: set[str]) -> list[str]:
    """Names of Python files in a text that are neither among ours (see ends_of) nor known as others'."""
    return [
        name
        for name in (found.group().removeprefix("./").removeprefix("../") for found in NAME.finditer(text))
        if name not in NOT_OURS and not name.startswith(LIBRARIES) and name not in paths
    ]


@pytest.mark.parametrize("kind", ["md", "py"])
def test_every_named_file_exists(kind: str) -> None:
    listed = tracked()
    paths = ends_of([name for name in listed if name.endswith(".py")])
    read = [name for name in listed if name.endswith(f".{kind}") and not name.startswith((*OTHERS, *HISTORY))]
    found = {}
    for path in read:
        text = (ROOT / path).read_text(encoding="utf-8")
        if not missing(text, paths):  # what stands in none of its lines stands in none of its comments
            continue
        for line, part in prose(text) if kind == "py" else [(1, text)]:
            if names := missing(part, paths):
                found[f"{path}:{line}"] = names
    assert len(read) > 40
    assert found == {}


def test_a_file_that_is_gone_is_found() -> None:
    text = '"""See gone.py."""\n# and folder/here.py\nname = "lost.py"\n'
    assert [missing(part, ends_of(["folder/here.py"])) for _line, part in prose(text)] == [[], ["gone.py"]]
    assert missing("other/here.py, here.py, torch/serialization.py", ends_of(["a/here.py"])) == ["other/here.py"]
