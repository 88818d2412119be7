"""A worker's part of a planning request: claim its row, read the trace, plan, answer or refuse, with signs of life."""

from __future__ import annotations

import logging
import resource
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO

from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy.exc import DBAPIError

from tightship_analyzers.offload_planner import requests
from tightship_analyzers.offload_planner.answer import answer
from tightship_analyzers.offload_planner.profile import Profile, parse_profile
from tightship_analyzers.offload_planner.request import Request, decode_request
from tightship_analyzers.offload_planner.workflow_profile import profile_of_workflow
from tightship_offload.errors import OffloadError, PlanError
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Trace
from tightship_platform.errors import TightshipError
from tightship_platform.results.plan_answer import PlanAnswer, PlanSource
from tightship_platform.units import format_bytes

log = logging.getLogger(__name__)

TIME_LIMIT_S = 300
"""A trace of 500 MB is read in half a minute; a search over 100 layers takes less."""


def plan(database: Database, artifacts: ArtifactStore, key: str) -> bool:
    """Make the plan of one request. False: there was nothing to do, or another worker has it by now."""
    with database.session() as session:
        claim = requests.begin(session, key)
    if claim is None:
        return False
    with _signs_of_life(database, claim):
        outcome = _outcome(database, artifacts, claim)
    with database.session() as session:
        if isinstance(outcome, PlanAnswer):
            return requests.finish(session, claim, outcome)
        log.info("No plan for request %s: %s", key[:8], outcome)
        return requests.refuse(session, claim, outcome)


@contextmanager
def _signs_of_life(database: Database, claim: requests.Claim) -> Iterator[None]:
    """Renew the claim from a thread: a search has long stretches without a report."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(requests.RENEW_S):
            _report(database, claim, None)

    thread = threading.Thread(target=renew, name=f"plan-{claim.key[:8]}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report(database: Database, claim: requests.Claim, stage: str | None) -> None:
    try:
        with database.session() as session:
            requests.renew(session, claim, stage)
    except DBAPIError as error:
        log.warning("Planning request %s could not be renewed: %s", claim.key[:8], " ".join(str(error.orig).split()))


def _outcome(database: Database, artifacts: ArtifactStore, claim: requests.Claim) -> PlanAnswer | str:
    """The answer, or in one line why there is none."""
    try:
        request = decode_request(claim.request)
        read_traces = partial(_read_traces, database, artifacts, request)
        return answer(request, read_traces, report=partial(_report, database, claim))
    except (OffloadError, TightshipError) as error:
        return str(error)
    except SoftTimeLimitExceeded:
        return f"planning took more than {TIME_LIMIT_S} s; `tightship offload plan` has no such limit"
    except MemoryError:
        used = format_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return f"the trace is too large for the memory of the worker ({used} used)"
    except OSError as error:
        return f"planning could not be done: {error.strerror or error}"
    except Exception:
        log.exception("Planning request %s failed", claim.key[:8])
        return "planning failed; the worker's log has the details"


def _read_traces(
    database: Database, artifacts: ArtifactStore, request: Request, sources: Sequence[PlanSource]
) -> tuple[Profile, PlanSource]:
    """The profile in the first usable trace that is still there; a plan of the same traces has it already.

    :raises PlanError: none holds one, or none is there any more.
    """
    with database.session() as session:
        known = requests.known_profile(session, request.traces_key)
        if known is not None:
            return parse_profile(known[0]), known[1]
        urls = {one.trace: url for one in sources if (url := _url(session.get(Trace, one.trace), one)) is not None}
    if not urls:
        raise PlanError(
            f"the traces of workflow {request.workflow!r} that were to be planned from are gone: it was deleted, or "
            "their files were removed for their age; capture one again"
        )

    def fetch(source: PlanSource, file: IO[bytes]) -> None:
        with artifacts.open(urls[source.trace]) as stored:
            shutil.copyfileobj(stored, file)

    return profile_of_workflow([one for one in sources if one.trace in urls], fetch)


def _url(trace: Trace | None, source: PlanSource) -> str | None:
    """Where a trace lies; None: it is gone. Its number may be another's by now, so its content has to be the same."""
    if trace is None or trace.removed_ns is not None or trace.sha256 != source.sha256:
        return None
    return trace.url
