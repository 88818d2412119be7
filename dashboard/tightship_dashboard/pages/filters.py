"""Filters that live in a page's address: who changes the address sees the page that it now stands for."""

from __future__ import annotations

from collections.abc import Callable

from dash import Dash, Input, Output, State
from dash.exceptions import PreventUpdate

from tightship_dashboard.figures.elements import Node
from tightship_dashboard.pages.view import View, current_view
from tightship_platform.database.engine import Database


def follow_address(
    app: Dash,
    database: Database,
    name: str,
    *,
    path: str,
    address_of: Callable[[View], str],
    layout: Callable[[View], Node],
) -> None:
    """Draw the page again when its address asks for something else.

    :param name: the page has a `dcc.Location` `<name>-url`, and in a `dcc.Store` `<name>-address` what it shows now.
    """

    @app.callback(
        Output("page", "children", allow_duplicate=True),
        Input(f"{name}-url", "search"),
        State(f"{name}-url", "pathname"),
        State(f"{name}-address", "data"),
        prevent_initial_call=True,
    )
    def _follow(search: str | None, at: str | None, shown: str | None) -> Node:
        view = current_view(database, search)
        if at != path or address_of(view) == shown:
            raise PreventUpdate
        return layout(view)
