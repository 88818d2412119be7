"""Runs documents as their readers do: block by block, in the order in which they stand, each shell for itself.

A block of the language `bash` begins with a comment that says in which shell it is run; one without is run where the
block before it was. Blocks of the language `sh` are not run: they install packages or need what is not here.
"""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from source_tree import ROOT
from waiting import PATIENCE_S

_BLOCK = re.compile(r"^```bash\n(?:# ([^\n]+?)(: what is yours)?\n)?(.*?)^```", re.DOTALL | re.MULTILINE)


BESIDE_DOCS = {"overview.md": "../README.md", "security.md": "../SECURITY.md"}


def main_pages() -> list[str]:
    """Where people begin, by the site's navigation: pages of *Start* and *Guides*, as paths from docs/."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    first = navigation.partition("  - Rules:")[0]
    return [BESIDE_DOCS.get(page, page) for page in re.findall(r"[\w/-]+\.md", first)]


@dataclass(frozen=True)
class Block:
    """Commands of a document."""

    where: str
    """The shell."""
    is_own: bool
    """Whether the reader puts values of their own into it."""
    text: str


def blocks(document: Path) -> Iterator[Block]:
    """The document's blocks that are run."""
    where = ""
    for said, own, text in _BLOCK.findall(document.read_text(encoding="utf-8")):
        where = said or where
        yield Block(where, bool(own), text)


@dataclass(frozen=True)
class Task:
    """Something to do, as docs/tasks.md has it."""

    question: str
    command: str
    page: str
    """Address of the page that does the same or answers."""


_TASK = re.compile(
    r"^### (?P<question>.+)\n\n```bash\n(?P<command>.+)\n```\n(?:(?!#)(?!Page: ).*\n)*Page: `(?P<page>/[^`]*)`",
    re.MULTILINE,
)


def tasks(document: Path) -> list[Task]:
    """Its tasks, each of one command of one line and one page."""
    text = document.read_text(encoding="utf-8")
    found = [Task(**match.groupdict()) for match in _TASK.finditer(text)]
    assert [task.question for task in found] == re.findall(r"^### (.+)$", text, re.MULTILINE)
    return found


def python_blocks(document: Path) -> list[str]:
    """Its blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


class Shell:
    """A bash that stops at the first command that fails."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.process = subprocess.Popen(
            ["bash", "-e"],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._begun: tuple[str, str] | None = None

    def begin(self, block: str) -> None:
        """Run it, and do not wait for its end."""
        assert self.process.stdin is not None
        if self._begun is not None:
            self.end()
        end = f"end-{uuid.uuid4().hex}"
        self.process.stdin.write(f"{block}\necho {end}\n")
        self.process.stdin.flush()
        self._begun = block, end

    def end(self) -> str:
        """What the block that was begun prints; its commands have all succeeded."""
        assert self.process.stdout is not None and self._begun is not None
        block, end = self._begun
        self._begun = None
        lines: list[str] = []
        for line in self.process.stdout:
            if line == f"{end}\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"{block}\nends with:\n{''.join(lines)}")

    def run(self, block: str) -> str:
        """What it prints; its commands have all succeeded."""
        self.begin(block)
        return self.end()

    def kill(self) -> None:
        """And all that it started."""
        for member in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)
