"""Tables that sort, filter and export. Rows hold plain values to sort by; what is shown stands beside them.

A row is a dict with an `id`. For a column `x`: `x` is the value (a number, or text), `x_text` what is shown, `x_href`
where it leads, `x_why` why it is missing, `x_colour` the colour of a state. assets/grids.js draws them; text never
becomes HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import dash_ag_grid as dag
from dash import html

from tightship_dashboard.figures.elements import Node, attrs

ROW_PX = 36
HEAD_PX = 38
VIRTUAL_FROM = 30
"""From this many rows on, the table scrolls within itself and keeps only visible rows in the page."""

Cell = str | int | float | None
Row = dict[str, Cell]
"""See above."""
Column = dict[str, Any]
"""A column as AG Grid's JSON has it."""
Kind = Literal["text", "number", "amount", "link", "state"]
"""An `amount` is a number whose text also names things; it is aligned as text."""

_THEME = {
    "backgroundColor": "var(--paper)",
    "foregroundColor": "var(--ink)",
    "accentColor": "var(--act)",
    "borderColor": "var(--hairline)",
    "browserColorScheme": "inherit",
    "headerBackgroundColor": "transparent",
    "headerTextColor": "var(--ink-2)",
    "headerFontWeight": 500,
    "fontFamily": "inherit",
    "headerFontFamily": "inherit",
    "fontSize": "var(--small)",
    "headerFontSize": "var(--small)",
    "spacing": 6,
    "cellHorizontalPadding": 8,
    "wrapperBorder": False,
    "wrapperBorderRadius": 0,
    "borderRadius": 2,
    "columnBorder": False,
    "headerColumnBorder": False,
    "rowHoverColor": "var(--wash)",
    "oddRowBackgroundColor": "transparent",
    "selectedRowBackgroundColor": "var(--wash)",
    "popupShadow": "none",
    "dropdownShadow": "none",
    "cardShadow": "none",
    "focusShadow": "none",
    "menuBorder": "1px solid var(--hairline)",
}
THEME = f"themeQuartz.withParams({json.dumps(_THEME)})"


def column(
    field: str,
    head: str,
    kind: Kind = "text",
    *,
    unit: str = "",
    why: str = "",
    wide: bool = False,
    exported: str = "",
    **more: Any,
) -> Column:
    """One column. `unit` names what the plain value counts, for sorting, filters and the exported file;
    `wide` ones are left out on a narrow screen; `exported` names what the file gets instead of the plain value, such as
    `why` for `x_why`."""
    definition: Column = {
        "field": field,
        "headerName": head,
        "headerTooltip": why or (f"Filters and export in {unit}" if unit else head),
        "context": {"unit": unit, "wide": wide, "exported": exported},
        "valueFormatter": {"function": "shownText(params)"},
        "tooltipValueGetter": {"function": "hoverText(params)"},
        "filter": "agNumberColumnFilter" if kind in ("number", "amount") else "agTextColumnFilter",
    }
    if kind in ("number", "amount"):
        definition["sortingOrder"] = ["desc", "asc", None]
    if kind == "number":
        definition["type"] = "rightAligned"
    if kind == "link":
        definition["cellRenderer"] = "LinkCell"
    if kind == "state":
        definition["cellRenderer"] = "StateCell"
    return definition | more


def table(
    grid_id: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Cell]],
    *,
    label: str,
    wrap: bool = False,
    fill: bool = False,
) -> Node:
    """The table. `wrap` lets rows grow with their text; `fill` gives it the rest of the window's height."""
    virtual = fill or len(rows) > VIRTUAL_FROM
    options = {
        "theme": {"function": THEME},
        "rowHeight": ROW_PX,
        "headerHeight": HEAD_PX,
        "animateRows": False,
        "suppressScrollOnNewData": True,
        "enableCellTextSelection": True,
        "ensureDomOrder": True,
        "suppressCellFocus": False,
        "tooltipShowDelay": 300,
        "suppressColumnVirtualisation": True,
        "domLayout": "normal" if virtual else "autoHeight",
        "localeText": {"noRowsToShow": "Nothing matches these filters."},
    }
    default = {"sortable": True, "resizable": True, "suppressHeaderMenuButton": False, "minWidth": 46}
    if wrap:
        default |= {"wrapText": True, "autoHeight": True}
    return html.Div(
        dag.AgGrid(
            id=grid_id,
            columnDefs=list(columns),
            rowData=list(rows),
            defaultColDef=default,
            dashGridOptions=options,
            getRowId="params.data.id",
            style={"height": "100%" if virtual else None, "width": "100%"},
            className="grid-body",
        ),
        className=f"grid{' fill' if fill else ' tall' if virtual else ''}",
        role="region",
        **attrs(aria_label=label),
    )


def export_button(grid_id: str, file_name: str) -> Node:
    """A button that saves the rows as they are filtered and sorted; assets/grids.js does it."""
    return html.Button(
        "Export CSV",
        type="button",
        className="quiet-button",
        **attrs(data_export=grid_id, data_file=file_name),
    )
