"""The rules' pages in a terminal, from a file that `make docs` writes: nothing that the rules need is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files

from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tightship_platform.commands.terminal import wide_console
from tightship_platform.errors import NotFound
from tightship_platform.results.rule import RulePage

FILE = "analyzers/tightship_analyzers/report/rules.json"
"""In the repository."""


def rule_pages() -> dict[str, list[RulePage]]:
    """What goes wrong → the rules that look for it."""
    text = files("tightship_analyzers.report").joinpath("rules.json").read_text(encoding="utf-8")
    return {title: [RulePage(**page) for page in pages] for title, pages in json.loads(text).items()}


def find_page(groups: Mapping[str, Sequence[RulePage]], rule: str) -> RulePage:
    """The page of a rule.

    :raises NotFound: there is none of this name.
    """
    pages = {page.rule: page for of_group in groups.values() for page in of_group}
    if rule in pages:
        return pages[rule]
    near = get_close_matches(rule.lower(), pages, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise NotFound("rule", rule, f"{meant}`tightship rules` lists them")


def print_rules(groups: Mapping[str, Sequence[RulePage]]) -> None:
    """The catalogue, one line per rule, under what goes wrong."""
    console = wide_console()
    width = max(len(page.rule) for pages in groups.values() for page in pages)
    for title, pages in groups.items():
        console.print(Text(title, style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=width)
        table.add_column(overflow="fold")
        for page in pages:
            table.add_row(Text(page.rule, style="cyan"), Text(page.title))
        console.print(Padding(table, (0, 0, 1, 2), expand=False))
    Console(stderr=True, highlight=False).print(Text("tightship rules ID shows the page of one.", style="dim"))


def print_page(page: RulePage) -> None:
    """One rule's page."""
    Console(highlight=False).print(Markdown(page.page))
