"""Lists in pages: what comes after the last row of the page before, whatever was added or removed in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, false, or_
from sqlalchemy.orm import InstrumentedAttribute

Order = Sequence[tuple[ColumnElement[Any] | InstrumentedAttribute[Any], bool]]
"""Columns by which a list is sorted, nulls last, and whether each is descending; together they are unique."""


def ordered(order: Order) -> list[ColumnElement[Any]]:
    """The columns for ORDER BY."""
    return [(column.desc() if descending else column.asc()).nulls_last() for column, descending in order]


def following(order: Order, last: Sequence[Any]) -> ColumnElement[bool]:
    """Rows that come after the one with these values.

    :param last: its value in each column of the order.
    """
    later: list[ColumnElement[bool]] = []
    same: list[ColumnElement[bool]] = []
    for (column, descending), value in zip(order, last, strict=True):
        beyond: ColumnElement[bool]
        if value is None:
            beyond, equal = false(), column.is_(None)
        else:
            beyond = or_(column < value if descending else column > value, column.is_(None))
            equal = column == value
        later.append(and_(*same, beyond))
        same.append(equal)
    return or_(*later)
