"""Lists in pages: what comes after the last row of the page before, whatever was added or removed in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, false, or_
from sqlalchemy.orm import InstrumentedAttribute

Order = Sequence[tuple[ColumnElement[Any] | InstrumentedAttribute[Any], bool]]
"""Columns by which a list is sorted, nulls last, and whether each is descending; together they are unique."""


def ordered(order: Order) -> list[ColumnElement[Any]]:
    """The columns for ORDER BY. A column that is never null says nothing of nulls: PostgreSQL would sort all rows then
    instead of reading the first ones from an index."""
    sorted_columns = [(column, column.desc() if descending else column.asc()) for column, descending in order]
    return [by.nulls_last() if _is_nullable(column) else by for column, by in sorted_columns]


def following(order: Order, last: Sequence[Any]) -> ColumnElement[bool]:
    """Rows that come after the one with these values.

    :param last: its value in each column of the order.
    """
    first, descending = order[0]
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
    if _is_nullable(first):
        return or_(*later)
    # Said once more so that an index is read from there on.
    return and_(first <= last[0] if descending else first >= last[0], or_(*later))


def _is_nullable(column: ColumnElement[Any] | InstrumentedAttribute[Any]) -> bool:
    """Whether it may be null, as far as the column itself says so."""
    return bool(getattr(column, "nullable", True))
