"""Commands that need no server: they work on the database that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tightship_platform.settings import load_settings

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


@contextmanager
def database_session(*, upgraded: bool = False) -> Iterator[Session]:
    """One transaction there.

    :param upgraded: bring the schema up to date before, as a server does at its start.
    :raises TightshipError: a setting is wrong, or the database is not to be had or of another release.
    """
    settings = load_settings()
    from tightship_platform.database import engine

    if upgraded:
        engine.upgrade(settings)
    with engine.open_database(settings) as opened, opened.session() as session:
        yield session
