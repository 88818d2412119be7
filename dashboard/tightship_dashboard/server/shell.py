"""What every page has around it: header with search and theme, the line for trouble, the help for the keyboard."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from tightship_dashboard.figures.chart import FONT
from tightship_dashboard.figures.elements import Node, attrs
from tightship_dashboard.pages.view import current_view
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import finding_href, run_href, runs_href
from tightship_dashboard.server.routing import draw, page_at
from tightship_platform.database.engine import Database
from tightship_platform.queries.findings import list_findings
from tightship_platform.queries.runs import list_runs
from tightship_platform.queries.workflows import list_workflows

NAVIGATION = (
    ("Where do device-hours go?", "/", "g f"),
    ("Runs", "/runs", "g r"),
    ("Will it fit?", "/will-it-fit", "g w"),
    ("Did it work?", "/did-it-work", "g d"),
    ("Collection", "/collection", "g c"),
)
KEYS = (
    ("/", "search runs, workflows and findings"),
    ("g f", "where do device-hours go?"),
    ("g r", "runs"),
    ("g w", "will it fit, and how fast?"),
    ("g d", "did it work?"),
    ("g c", "is the collection healthy?"),
    ("g a", "who did what? (administrators)"),
    ("?", "this help"),
    ("Esc", "close, or leave the search"),
)
SCHEMES = (("light", "☀", "light"), ("auto", "◐", "as the system"), ("dark", "☾", "dark"))
_OFFERED = 200
"""Newest runs and findings that the search offers."""


def layout() -> Node:
    """The frame around the pages."""
    return dmc.MantineProvider(
        id="theme",
        defaultColorScheme="auto",
        theme={"fontFamily": FONT, "primaryColor": "indigo", "defaultRadius": 2, "respectReducedMotion": True},
        children=[
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="title"),
            dcc.Store(id="search-asked"),
            html.A("Skip to the answer", href="#question", className="skip"),
            _header(),
            html.P(id="trouble", className="notice error", role="alert", hidden=True),
            html.Main(id="page"),
            _help(),
        ],
    )


def _header() -> Node:
    return html.Header(
        [
            dcc.Link("tightship", href="/", className="wordmark"),
            html.Nav(
                [dcc.Link(text, href=href, id={"nav": href}) for text, href, _keys in NAVIGATION],
                className="pages",
                **attrs(aria_label="Pages"),
            ),
            html.Div(
                [
                    dmc.Select(
                        id="search",
                        placeholder="Search  /",
                        searchable=True,
                        clearable=True,
                        selectFirstOptionOnChange=True,
                        nothingFoundMessage="Nothing of that name. The page Runs searches labels, commits and hosts.",
                        data=[],
                        limit=40,
                        size="xs",
                        rightSection=" ",
                        maxDropdownHeight=420,
                        comboboxProps={"width": 320, "position": "bottom-end", "shadow": "none"},
                        **attrs(aria_label="Search runs, workflows and findings"),
                    ),
                    dmc.SegmentedControl(
                        id="scheme",
                        value="auto",
                        data=[
                            {"value": value, "label": html.Span(sign, title=word, **attrs(aria_label=word))}
                            for value, sign, word in SCHEMES
                        ],
                        size="xs",
                        persistence=True,
                        persistence_type="local",
                    ),
                    html.Button("?", id="help-open", type="button", className="quiet-button", title="Keyboard (?)"),
                ],
                className="tools",
            ),
        ]
    )


def _help() -> Node:
    rows = [html.Tr([html.Th(html.Kbd(keys)), html.Td(what)]) for keys, what in KEYS]
    return dmc.Modal(
        [
            html.Table(html.Tbody(rows), className="keys"),
            html.P(["The API: ", html.A("/docs", href="/docs")]),
            html.P(
                [dcc.Link("Who did what?", href="/audit"), " (administrators) · ", html.A("Log out", href="/logout")]
            ),
        ],
        id="help",
        title="Keyboard",
        opened=False,
        shadow="none",
        centered=True,
    )


def register(app: Dash, database: Database) -> None:
    """Routing, search and theme."""

    @app.callback(Output("page", "children"), Output("title", "data"), Input("url", "pathname"), State("url", "search"))
    def _route(path: str | None, search: str | None) -> tuple[Node, str]:
        page = page_at(path)
        return draw(path, current_view(database, search)), page.title if page else "Nothing here"

    @app.callback(Output("search", "data"), Input("search-asked", "data"), prevent_initial_call=True)
    def _offer(_asked: Any) -> Any:
        return _offers(database)

    in_browser: Any = app.clientside_callback
    for function, output, *inputs in (
        ("title", Output("title", "id"), Input("title", "data")),
        ("scheme", Output("theme", "forceColorScheme"), Input("scheme", "value")),
        ("follow", Output("search", "value"), Input("search", "value")),
        ("openHelp", Output("help", "opened"), Input("help-open", "n_clicks")),
        ("here", Output("url", "id"), Input("url", "pathname")),
    ):
        in_browser(
            ClientsideFunction("tightship", function),
            output,
            *inputs,
            prevent_initial_call=function in ("follow", "openHelp"),
        )


def _offers(database: Database) -> list[dict[str, object]]:
    with database.session() as session:
        known_workflows = list_workflows(session)
        known_runs = list_runs(session, limit=_OFFERED)
        known_findings = list_findings(session, limit=_OFFERED)
    groups = (
        (
            "Workflows",
            [(runs_href(workflow=w.workflow), fmt.name(w.workflow, limit=60)) for w in known_workflows],
        ),
        (
            "Runs",
            [(run_href(r.run), f"{fmt.name(r.run)} {fmt.name(r.workflow, limit=40)}") for r in known_runs],
        ),
        (
            "Findings",
            [
                (finding_href(f.finding), f"{fmt.name(f.title, limit=70)} ({fmt.name(f.workflow, limit=30)})")
                for f in known_findings
            ],
        ),
    )
    return [
        {"group": group, "items": [{"value": href, "label": label} for href, label in items]}
        for group, items in groups
        if items
    ]
