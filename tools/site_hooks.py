"""Hooks of mkdocs.yml: the site has all documents of the repository, and their links lead to each other.

Documents are written for the repository's own view. There `../SECURITY.md` is a file beside docs/, `rules/` a folder
and `../tests/readings/` code; in the site the first is a page like the others, the second its folder's first page, and
the third is not there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
BESIDE_DOCS = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""File at the repository's root → its page in the site."""
INDEX = "README.md"
"""First page of a folder."""
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)")
_FENCE = re.compile(r"^ *(```+|~~~+)")
_GENERATED = re.compile(r"\A<!--[^>]*-->\s*")


def on_config(config: Any) -> Any:
    """In the navigation, a folder stands for its pages: the first one, then the others by name."""
    config.nav = list(_expanded(config.nav, Path(config.docs_dir)))
    return config


def _expanded(entries: list[Any], docs: Path) -> Iterator[Any]:
    for entry in entries:
        if not isinstance(entry, dict):
            yield entry
            continue
        for title, inside in entry.items():
            if isinstance(inside, list):
                yield {title: list(_expanded(inside, docs))}
            elif inside.endswith("/"):
                names = sorted(path.name for path in (docs / inside).glob("*.md"))
                yield {title: [inside + name for name in sorted(names, key=lambda name: name != INDEX)]}
            else:
                yield entry


def on_files(files: Any, config: Any) -> Any:
    """Add what lies beside docs/."""
    from mkdocs.structure.files import File

    for name, page in BESIDE_DOCS.items():
        files.append(File.generated(config, page, abs_src_path=str(Path(config.docs_dir).parent / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The text as the site needs it."""
    return for_site(markdown, page.file.src_uri, Path(config.docs_dir).parent)


def for_site(markdown: str, page: str, root: Path = ROOT) -> str:
    """A document's text with links that hold in the site.

    :param page: its path in the site.
    :param root: the repository.
    """
    named = {in_site: name for name, in_site in BESIDE_DOCS.items()}
    folder = posixpath.dirname(DOCS + page) if page not in named else ""
    parts = [
        part if fenced else _table_bars(_LINK.sub(lambda link: _led(link, folder, page, root), part))
        for fenced, part in _by_fences(_GENERATED.sub("", markdown))
    ]
    return "".join(parts)


def _by_fences(text: str) -> Iterator[tuple[bool, str]]:
    """The text in parts: whether each is a fenced block."""
    part, fence = "", ""
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if mark and not fence:
            yield False, part
            part, fence = line, mark[1]
        elif mark and mark[1].startswith(fence):
            yield True, part + line
            part, fence = "", ""
        else:
            part += line
    yield bool(fence), part


def _table_bars(text: str) -> str:
    """GitHub wants bars within code in tables escaped; Python-Markdown would show the backslash."""
    return re.sub(
        r"^\|.*$", lambda row: re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0]), text, flags=re.M
    )


def _led(link: re.Match[str], folder: str, page: str, root: Path) -> str:
    """A link as the site needs it. One to code loses its target; one that leads nowhere stays, for mkdocs to refuse."""
    target = posixpath.normpath(posixpath.join(folder, link["target"]))
    if "://" in link["target"] or target.startswith("..") or not (root / target).exists():
        return link[0]
    if target in BESIDE_DOCS:
        in_site = BESIDE_DOCS[target]
    elif target.startswith(DOCS):
        in_site = target.removeprefix(DOCS) + (f"/{INDEX}" if (root / target).is_dir() else "")
    else:
        return link["text"]
    there = posixpath.relpath(in_site, posixpath.dirname(page) or ".")
    return f"{link['image']}[{link['text']}]({there}{link['anchor'] or ''})"
