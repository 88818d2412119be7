"""Whose trace files the artifact store holds.

[Note: one store, one installation]
A database has an installation id, and the artifact store carries the id of the installation that it belongs to in
`traces/tightship-installation`. Nothing is ever removed from a store that carries another id, or none although it holds
traces: a database that is new, restored, or named by mistake knows nothing of the files there. The first upload into a
store without traces writes the id; after that only a person changes it (`tightship db adopt-store`). Adopting makes a
new id, so that a copy of the database that is in use elsewhere no longer owns the store.
"""

from __future__ import annotations

import re
import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.captures.artifact_store import TRACES, ArtifactStore, StoreTrouble
from tightship_platform.database import upsert
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Installation, Trace
from tightship_platform.errors import Conflict, NotFound

MARKER = f"{TRACES}/tightship-installation"
"""Not a dot file: whoever copies `traces/*` takes it along."""
_ONLY = 1
"""Primary key of the one row."""
_ID = re.compile(rb"[0-9a-f]{32}\n?")


def installation_id(session: Session) -> str:
    """The id of this database's installation, made at the first call; processes that ask at once get the same."""
    upsert.add_missing(session, Installation, [{"id": _ONLY, "key": uuid.uuid4().hex}])
    return session.scalars(select(Installation.key)).one()


def read_owner(store: ArtifactStore) -> str | None:
    """The id that the store carries; None when it carries none, and "" when that file holds something else."""
    try:
        content = store.read_start(MARKER, 64)
    except NotFound:
        return None
    return content.strip().decode() if _ID.fullmatch(content) else ""


def find_fault(session: Session, store: ArtifactStore) -> str | None:
    """One line that says why nothing may be removed from the store; None when it is this installation's, or empty."""
    owner = read_owner(store)
    if owner is None:
        if not _holds_traces(store):
            return None
        return f"The artifact store {store.shown_url} holds traces and carries no installation id"
    ours = session.scalar(select(Installation.key))
    if owner == ours:
        return None
    owned = f"belongs to installation {owner}" if owner else f"has something else than an installation id in {MARKER}"
    database = f"this database is of installation {ours}" if ours else "this database has never used a store"
    return f"The artifact store {store.shown_url} {owned}, and {database}"


def require_own(session: Session, store: ArtifactStore) -> None:
    """Pass where files may be removed.

    :raises Conflict: see `find_fault`.
    """
    fault = find_fault(session, store)
    if fault is not None:
        raise Conflict(
            f"{fault}; if the store is this installation's, run `tightship db adopt-store`, "
            "otherwise correct TIGHTSHIP_ARTIFACTS_URL"
        )


def require_present(session: Session, store: ArtifactStore) -> None:
    """Pass where a file that is not in the store is gone; where the whole store is missing it may come back.

    :raises StoreTrouble: the store is empty, or another installation's: a volume is not mounted, or a URL mistyped.
    """
    ours = session.scalar(select(Installation.key))
    owner = read_owner(store)
    if ours is None or owner == ours:
        return
    if owner is not None or not _holds_traces(store):
        seen = f"it belongs to installation {owner or '(unreadable)'}" if owner is not None else "it is empty"
        raise StoreTrouble(f"The artifact store {store.shown_url} is not the one that this database has used: {seen}")


def claim(database: Database, store: ArtifactStore) -> None:
    """Make the store this installation's where it holds neither traces nor an id; called before each upload.

    :raises StoreTrouble: the database has used a store and names traces in it, so that store is missing.
    """
    if read_owner(store) is None and not _holds_traces(store):
        with database.session() as session:
            used = session.scalar(select(Installation.key)) is not None
            if used and session.scalar(select(Trace.id).where(Trace.removed_ns.is_(None)).limit(1)) is not None:
                raise StoreTrouble(
                    f"The artifact store {store.shown_url} is empty, and the database names traces; mount its volume "
                    "or correct TIGHTSHIP_ARTIFACTS_URL, or run `tightship db adopt-store` to begin with an empty one"
                )
            ours = installation_id(session)
        _write(store, ours)


def adopt(database: Database, store: ArtifactStore) -> str:
    """Make the store this installation's, whatever it holds, under a new id; returns the id."""
    key = uuid.uuid4().hex
    with database.session() as session:
        upsert.put(session, Installation, [{"id": _ONLY, "key": key}], key=["id"], update=["key"])
        # Within the transaction: if either write fails they differ at worst, and nothing is removed.
        _write(store, key)
    return key


def _write(store: ArtifactStore, key: str) -> None:
    store.write(MARKER, [f"{key}\n".encode()], max_bytes=64)


def _holds_traces(store: ArtifactStore) -> bool:
    return any(store.files(folder) for folder in store.folders(TRACES))
