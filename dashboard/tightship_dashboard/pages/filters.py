"""Filters that live in a page's address: who changes the address sees the page that it now stands for."""

from __future__ import annotations

from collections.abc import Callable

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State
from dash.exceptions import PreventUpdate

from tightship_dashboard.figures.elements import Node, attrs
from tightship_dashboard.pages.view import View, current_view
from tightship_dashboard.sentences import formatting as fmt
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


def choice(choice_id: str, values: list[str], value: str | None, nothing: str, label: str) -> Node:
    """One of many values, found by typing.

    :param nothing: what stands there where none is chosen.
    """
    return dmc.Select(
        id=choice_id,
        data=[{"value": one, "label": fmt.name(one, limit=60)} for one in values],
        value=value,
        placeholder=nothing,
        searchable=True,
        clearable=True,
        size="xs",
        w=190,
        **attrs(aria_label=label),
    )
