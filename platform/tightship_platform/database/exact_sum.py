"""Sums of nanoseconds beyond 64 bits: 292 years of device time, which 20,000 devices spend in a week.

PostgreSQL's sum of such integers is a decimal without a limit. SQLite's ends in an error, so there the upper and the
lower halves are summed by themselves.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Dialect, Text, TypeDecorator
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

_HALF_BITS = 32


class _Whole(TypeDecorator[int]):
    impl = Text
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        """The sum; None: of no row."""
        if not isinstance(value, str):
            return None if value is None else int(value)
        upper, lower = value.split()
        return (int(upper) << _HALF_BITS) + int(lower)


class exact_sum(FunctionElement[int]):  # noqa: N801 - named as a function of SQL is
    """Sum of an integer column over a group; None of no row."""

    inherit_cache = True
    name = "exact_sum"
    type = _Whole()

    def __init__(self, column: ColumnElement[Any] | Any) -> None:
        super().__init__(column)


@compiles(exact_sum)
def _sum(element: exact_sum, compiler: SQLCompiler, **kw: Any) -> str:
    return f"sum({compiler.process(element.clauses, **kw)})"


@compiles(exact_sum, "sqlite")
def _sum_of_halves(element: exact_sum, compiler: SQLCompiler, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    lower = 2**_HALF_BITS - 1
    return f"sum(({column}) >> {_HALF_BITS}) || ' ' || sum(({column}) & {lower})"
