"""Small histories of fleets as their systems write them, and an import without a server."""

from __future__ import annotations

import dataclasses
import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from tightship_analyzers.fleet import accounting
from tightship_collectors.commands import import_history
from tightship_collectors.importers.source import Options, Source
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Run
from tightship_platform.database.reporters import ANYBODY, Reporter
from tightship_platform.ingest import imports
from tightship_platform.vocabulary import FleetFormat

T0_S = 1_662_858_720
"""In 2022: older than any sample is kept."""
STEP_S = 57
SACCT = "JobID|JobIDRaw|JobName|User|Account|State|Start|End|ElapsedRaw|ExitCode|AllocTRES|NodeList"
TWO = "billing=4,cpu=4,gres/gpu=2,mem=8G,node=1"


def duty(pods: dict[str, list[tuple[int, float]]], head: str = "value,timestamp_anon,container_ip") -> str:
    """Samples of duty cycle, as (number of the step, percent)."""
    rows = [f"{value},{T0_S + STEP_S * step}.0,{pod}" for pod, samples in pods.items() for step, value in samples]
    return "\n".join([head, *rows]) + "\n"


def memory(pods: dict[str, list[tuple[int, float]]]) -> str:
    """Samples of used memory, as (number of the step, bytes)."""
    rows = [f"{T0_S + STEP_S * step}.0,{value},{pod}" for pod, samples in pods.items() for step, value in samples]
    return "\n".join(["timestamp_anon,value,container_ip", *rows]) + "\n"


def archive(path: Path, text: str) -> Path:
    """A tar.gz that holds the text as one .csv."""
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(path.name.replace(".tar.gz", ".csv"))
        member.size = len(text.encode())
        tar.addfile(member, io.BytesIO(text.encode()))
    return path


def zipped(path: Path, text: str) -> Path:
    """A .gz of the text."""
    path.write_bytes(gzip.compress(text.encode()))
    return path


def written(path: Path, *lines: str) -> Path:
    """A file of these lines."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


class Direct:
    """In place of a client of the API: each request in its own transaction."""

    def __init__(self, database: Database, reporter: Reporter = ANYBODY) -> None:
        self.database = database
        self.reporter = reporter
        self.left = 1_000_000
        """Parts that are taken before the importer is killed."""

    def post(self, path: str, body: Any) -> Any:
        """As `ApiClient.post`."""
        name = path.split("/")[2]
        with self.database.session() as session:
            if not path.endswith("/parts"):
                return dataclasses.asdict(imports.put_fleet(session, name, body, reporter=self.reporter))
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return dataclasses.asdict(imports.put_part(session, name, body, reporter=self.reporter))


def take(api: Direct, kind: FleetFormat, path: Path, name: str | None = None, **options: Any) -> tuple[Source, Any]:
    """Import a history; the source, and what was sent."""
    source = import_history.OPENERS[kind](path, Options(**options))
    return source, import_history._send(api, name or source.name, source, lambda _: None)  # type: ignore[arg-type]


def account_all(session: Session) -> int:
    """Make all accounts that are due; how many."""
    due = accounting.due_runs(session)
    for run_id in due:
        accounting.account_run(session, session.get_one(Run, run_id))
    session.flush()
    return len(due)
