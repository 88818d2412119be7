"""The analysis of a capture: from the trace files of its ranks to findings in the database."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

from sqlalchemy import select

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import Verdict, judge_trace
from tightship_analyzers.fleet.accounting import account_run
from tightship_analyzers.fleet.findings_store import save_capture
from tightship_analyzers.fleet.untraced_steps import untraced_step_ns
from tightship_platform import captures
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, Run, Trace
from tightship_platform.errors import TightshipError
from tightship_platform.text import shown
from tightship_platform.units import now_ns, plural

log = logging.getLogger(__name__)

MAX_REASON = 300


def analyze_capture(database: Database, artifacts: ArtifactStore, key: str) -> bool:
    """Analyse an uploaded capture, whole. False: there was nothing to do, or somebody else is at it.

    Findings of an earlier analysis of the same traces are replaced. A file that cannot be read ends the capture as
    failed with the reader's line; what the other ranks' files say is kept all the same.

    :raises NotFound: no such capture.
    """
    with database.session() as session:
        if not captures.start_analysis(session, key):
            return False
    with database.session() as session:
        capture = session.scalars(select(Capture).where(Capture.key == key)).one()
        files = [
            (trace, untraced_step_ns(session, trace))
            for trace in session.scalars(select(Trace).where(Trace.capture_id == capture.id).order_by(Trace.rank))
        ]
    verdicts: dict[int, Verdict | str] = {}
    for trace, untraced_ns in files:
        verdicts[trace.id] = _verdict(artifacts, trace, untraced_ns)
        with database.session() as session:
            captures.renew_analysis(session, key)
    _finish(database, key, files[0][0].run_id if files else None, verdicts)
    return True


def _verdict(artifacts: ArtifactStore, trace: Trace, untraced_ns: int | None) -> Verdict | str:
    with tempfile.TemporaryDirectory(prefix="tightship-") as folder:
        path = Path(folder) / f"rank-{trace.rank}.json.gz"
        try:
            with artifacts.open(trace.url) as stored, path.open("wb") as local:
                shutil.copyfileobj(stored, local)
            recorded = traces.open(path)
        except TightshipError as error:
            return shown(str(error).replace(str(path), f"of rank {trace.rank}"), MAX_REASON)
    return judge_trace(recorded, untraced_step_ns=untraced_ns)


def _finish(database: Database, key: str, run_id: int | None, verdicts: dict[int, Verdict | str]) -> None:
    errors = [verdict for verdict in verdicts.values() if isinstance(verdict, str)]
    with database.session() as session:
        # The state first: it locks the row, and says whether this analysis still counts.
        if errors:
            capture = captures.fail(session, key, errors[0])
        else:
            capture = captures.analyzed(session, key)
        save_capture(session, capture, verdicts, now=now_ns())
    if run_id is not None:
        with database.session() as session:
            account_run(session, session.get_one(Run, run_id))
    for verdict in verdicts.values():
        if isinstance(verdict, Verdict):
            log.info("Capture %s: %s", key, plural(len(verdict.findings), "finding"))
        else:
            log.warning("Capture %s: %s", key, verdict)
