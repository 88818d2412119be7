"""The offload plan that was computed for a workflow: what a worker answered to a request of a page."""

from __future__ import annotations

import json
import zlib

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database.models import PlanRequest
from tightship_platform.vocabulary import PlanState

LOOKED_AT = 50
"""Newest answers among which the workflow's is looked for."""
MAX_ANSWER_BYTES = 64 * 2**20
"""As analyzers.offload_planner.requests has it, which stores them."""


def newest_plan(session: Session, workflow: str) -> str | None:
    """The text of the newest plan that was made from traces of a workflow; None: there is none that fits."""
    rows = session.execute(
        select(PlanRequest.request, PlanRequest.answer)
        .where(PlanRequest.state == PlanState.PLANNED.value, PlanRequest.answer.is_not(None))
        .order_by(PlanRequest.finished_ns.desc(), PlanRequest.id.desc())
        .limit(LOOKED_AT)
    )
    for request, answer in rows:
        try:
            if json.loads(request).get("workflow") != workflow:
                continue
            document = json.loads(zlib.decompressobj().decompress(answer or b"", MAX_ANSWER_BYTES))
            plan = document["answer"]["plan"]
        except (zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # another release wrote it
        if isinstance(plan, str) and plan:
            return plan
    return None
