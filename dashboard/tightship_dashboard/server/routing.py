"""Which page an address means."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from dash import html

from tightship_dashboard.figures.elements import Node, empty, prose, question
from tightship_dashboard.pages import (
    did_it_work,
    is_the_collection_healthy,
    one_action,
    one_finding,
    one_run,
    one_trace,
    runs,
    where_do_device_hours_go,
    who_did_what,
    will_it_fit,
)
from tightship_dashboard.pages.view import View
from tightship_dashboard.sentences.links import Answer
from tightship_platform.errors import NotFound, TightshipError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """A page of the dashboard at one address."""

    title: str
    answer: Callable[[View], Answer]
    """The first line. :raises NotFound: what the address names does not exist."""
    layout: Callable[[View], Node]
    """The whole page. :raises NotFound: as above."""


def page_at(path: str | None) -> Page | None:
    """The page behind a path; None: there is none."""
    path = (path or "/").rstrip("/") or "/"
    for whole in (
        where_do_device_hours_go,
        runs,
        will_it_fit,
        did_it_work,
        is_the_collection_healthy,
        who_did_what,
    ):
        if path == whole.PATH:
            return Page(whole.title(), whole.answer, whole.layout)
    for one in (one_run, one_finding, one_trace, one_action):
        match = one.PATH.fullmatch(path)
        if match:
            key = unquote(match[1])
            return Page(one.title(key), partial(one.answer, key=key), partial(one.layout, key=key))
    return None


def draw(path: str | None, view: View) -> Node:
    """The page behind a path, or a friendly word that there is none."""
    page = page_at(path)
    if page is None:
        return not_there(f"There is no page at {(path or '')[:80]!r}.")
    try:
        return page.layout(view)
    except NotFound as error:
        return not_there(f"{error}.")
    except Exception as error:
        if not isinstance(error, TightshipError):
            log.exception("The page at %r could not be drawn", path)
        return trouble(error)


def not_there(what: str) -> Node:
    """What somebody sees who followed an old or mistyped address."""
    return html.Div(
        [
            question("Nothing here"),
            html.P(prose(what), className="answer"),
            empty("It may have been deleted, or the address was cut off.", "Runs and their ids:", "tightship runs"),
        ]
    )


def trouble(error: Exception) -> Node:
    """A page that could not be drawn: what happened, and that nothing was lost."""
    what = str(error) if isinstance(error, TightshipError) else f"{type(error).__name__}; the server's log has the rest"
    return html.Div(
        [
            question("This page could not be drawn"),
            html.P(prose(f"{what}."), className="answer"),
            empty("Nothing that was recorded is lost.", "Check what the server can reach:", "tightship doctor"),
        ]
    )
