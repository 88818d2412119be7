"""Column vocabulary shared by all tables."""

from __future__ import annotations

from typing import Annotated, Any

from sqlalchemy import JSON, BigInteger, Integer, MetaData, String, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, mapped_column

# SQLite only auto-increments a column declared exactly INTEGER.
BigId = BigInteger().with_variant(Integer, "sqlite")
JsonColumn = JSON().with_variant(JSONB, "postgresql")

pk = Annotated[int, mapped_column(BigId, primary_key=True)]
ns = Annotated[int, mapped_column(BigInteger)]
name = Annotated[str, mapped_column(String(200))]
text = Annotated[str, mapped_column(Text)]
_Object = dict[str, Any]
json_dict = Annotated[_Object, mapped_column(JsonColumn, default=dict)]
json_or_null = Annotated[_Object | None, mapped_column(JsonColumn, nullable=True)]
json_list = Annotated[list[Any], mapped_column(JsonColumn, default=list)]


class Base(DeclarativeBase):
    """Declarative base with fixed constraint names, so that migrations read the same on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
