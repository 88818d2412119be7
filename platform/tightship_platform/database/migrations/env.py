"""How Alembic runs here: on a connection whose transaction and lock `tightship_platform.database.schema` holds."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection

from tightship_platform.database.models import Base
from tightship_platform.database.schema import VERSION_TABLE, partitions_of


def _run(connection: Connection) -> None:
    partitions = partitions_of(connection)

    def is_ours(name: str | None, kind: str, _parents: Any) -> bool:
        return kind != "table" or name not in partitions

    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        include_name=is_ours,
        # SQLite cannot alter most things in place: batch mode copies the table.
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


_run(context.config.attributes["connection"])
