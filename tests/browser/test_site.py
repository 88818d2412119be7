"""The documents as a site: it builds without a warning, its links lead somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import site_hooks
from source_tree import ROOT

pytest.importorskip("mkdocs", reason="mkdocs-material is not installed")

Tab = Any
LOADED = re.compile(r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data)=\"?([^\"\s>]+)")
LINKED = re.compile(r"<link\b(?=[^>]*\brel=\"?(?:stylesheet|preload|preconnect|dns-prefetch|modulepreload|icon))[^>]*>")
STARTS = (
    "index.html",
    "start/train.html",
    "cli.html",
    "operations.html",
    "tour.html",
    "http-api.html",
    "overview.html",
)


def build(site: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--config-file",
        root / "mkdocs.yml",
        "--site-dir",
        site,
    ]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    pages = {
        path.relative_to(site).as_posix(): text_of(path) for path in site.rglob("*.html") if path.name != "404.html"
    }
    places = {name: set(re.findall(r'\bid="?([^"\s>]+)', text)) for name, text in pages.items()}
    dead = []
    for name, text in pages.items():
        for href in set(re.findall(r'<a\b[^>]*?\bhref="?([^"\s>]+)', text)):
            target, _, anchor = unquote(unescape(href)).partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            there = posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) if target else name
            if not (site / there).is_file() or (anchor and anchor != "__skip" and anchor not in places.get(there, ())):
                dead.append((name, href))
    assert len(pages) > 80
    assert dead == []


def test_the_site_has_all_documents_and_nothing_from_elsewhere(site: Path) -> None:
    documents = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    missing = {path for path in documents if not (site / path).exists() and path.name != "README.html"}
    assert missing == set()
    for page in site_hooks.BESIDE_DOCS.values():
        assert (site / page).with_suffix(".html").exists()
    foreign = []
    for path in site.rglob("*.html"):
        loaded = [*LOADED.findall(text_of(path)), *LINKED.findall(text_of(path))]
        foreign += [(path.name, one) for one in loaded if "//" in one]
    for path in site.rglob("*.css"):
        foreign += [(path.name, one) for one in re.findall(r"url\([\"']?((?:https?:)?//[^)]+)", text_of(path))]
        foreign += [(path.name, one) for one in re.findall(r"@import[^;]+", text_of(path))]
    assert foreign == []


@pytest.mark.parametrize(
    ("page", "before", "after", "says"),
    [
        ("docs/hangs.md", "# A job that hangs\n", "# A job that hangs\n\n[gone](no-such-page.md)\n", "no-such-page.md"),
        ("docs/glossary.md", "# Glossary\n", "# Glossary\n\n[gone](#no-such-place)\n", "no-such-place"),
    ],
)
def test_a_broken_link_fails_the_build(tmp_path: Path, page: str, before: str, after: str, says: str) -> None:
    """In a small copy: the settings of the real one, with few pages."""
    kept = (*site_hooks.BESIDE_DOCS, "mkdocs.yml", "tools/site_hooks.py", "docs/hangs.md", "docs/glossary.md")
    for name in kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in (*site_hooks.BESIDE_DOCS, "docs/hangs.md", "docs/glossary.md"):
        (tmp_path / name).write_text(f"# {(ROOT / name).read_text().partition('# ')[2].partition(chr(10))[0]}\n")
    config = (tmp_path / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    pages = "".join(f"  - {name}\n" for name in ("hangs.md", "glossary.md", *site_hooks.BESIDE_DOCS.values()))
    (tmp_path / "mkdocs.yml").write_text(f"{config}\nnav:\n{pages}")
    well = build(tmp_path / "well", tmp_path)
    assert well.returncode == 0, well.stdout + well.stderr
    (tmp_path / page).write_text((tmp_path / page).read_text().replace(before, after))
    broken = build(tmp_path / "broken", tmp_path)
    assert broken.returncode == 1
    assert says in broken.stdout + broken.stderr


# ---- links and tables on their way into the site ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "text", "there"),
    [
        ("operations.md", "[x](../SECURITY.md)", "[x](security.md)"),
        ("start/train.md", "[x](../../README.md#what-it-costs)", "[x](../overview.md#what-it-costs)"),
        ("overview.md", "[x](docs/operations.md#tokens)", "[x](operations.md#tokens)"),
        ("overview.md", "[the\nrules](docs/rules/)", "[the\nrules](rules/README.md)"),
        ("overview.md", "[x](CHANGELOG.md)", "[x](changelog.md)"),
        ("overview.md", "![x](docs/images/one-finding.png)", "![x](images/one-finding.png)"),
        ("analyze.md", "[x](rules/)", "[x](rules/README.md)"),
        ("offload.md", "[x](../tests/readings/README.md)", "x"),
        (
            "cli.md",
            "[x](#capture) [y](https://a.example/docs/cli.md)",
            "[x](#capture) [y](https://a.example/docs/cli.md)",
        ),
        ("cli.md", "[x](gone.md) [y](../gone.md)", "[x](gone.md) [y](../gone.md)"),
        ("cli.md", "```\n[x](../SECURITY.md)\n```\n", "```\n[x](../SECURITY.md)\n```\n"),
        ("cli.md", "| `a \\| b` | c |\n`a \\| b`", "| `a | b` | c |\n`a \\| b`"),
        ("cli.md", "<!-- Generated by `make docs`. -->\n\n# Commands", "# Commands"),
    ],
)
def test_links_are_led_to_where_their_pages_are(page: str, text: str, there: str) -> None:
    assert site_hooks.for_site(text, page) == there


# ---- to read ---------------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_pages_are_read_in_both_themes_without_a_network(
    site: Path, tab: Callable[..., Tab], scheme: str, width: int
) -> None:
    here = tab(f"file://{site}", scheme=scheme, width=width, own=True)
    for page in STARTS:
        here.page.goto(f"file://{site}/{page}")
        here.page.wait_for_selector("article h1")
        dark = here.page.evaluate("document.body.dataset.mdColorScheme") == "slate"
        assert dark == (scheme == "dark"), page
        assert not here.scrolls_sideways(), page
    # From a folder the search's index cannot be read; a server makes that whole.
    here.watch.wrong = [line for line in here.watch.wrong if "search" not in line]
