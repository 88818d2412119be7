"""Which of a workflow's captured traces a plan can be made from.

The page and `tightship offload plan --workflow` choose alike; they differ in how they fetch the file.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tightship_platform.results.capture import Capture, CapturedRank
from tightship_platform.results.plan_answer import PlanSource
from tightship_platform.vocabulary import CaptureState

MOST_TRIED = 3
"""Traces that are read before a workflow counts as one that cannot be planned: the newest may be of an evaluation."""
LOOKED_AT = 20
"""Newest captures of a workflow among which a trace is looked for."""
_KEPT = (CaptureState.UPLOADED, CaptureState.ANALYZED)
_UNDER_WAY = tuple(state for state in CaptureState if not state.is_final and state not in _KEPT)


def sources(captures: Sequence[Capture]) -> list[PlanSource]:
    """Traces to try, in the order of the captures (as `queries.captures` lists them, newest first)."""
    return [_source(one, kept[0]) for one in captures if _has_shapes(one) and (kept := _kept(one))][:MOST_TRIED]


def lacking(captures: Sequence[Capture]) -> str:
    """In words, why a workflow's captures hold no trace to plan from; empty where one does."""
    if sources(captures):
        return ""
    if not captures:
        return "no trace of it was captured"
    if any(one.state in _UNDER_WAY for one in captures):
        return "a capture is under way"
    newest = captures[0]
    if newest.state not in _KEPT:
        return f"its newest capture {newest.state}: {newest.reason or 'no reason was given'}"
    if not _has_shapes(newest):
        without = [what for what in ("stacks", "shapes") if not getattr(newest.params, what)]
        return f"its newest trace was recorded without {' and '.join(without)}"
    return "the files of its traces were removed, or could not be read"


def command_for(workflow: str) -> str:
    """What captures a trace to plan from, quoted for a shell; a name that begins with a dash is no option."""
    end = "-- " if workflow.startswith("-") else ""
    return f"tightship profile --stacks --shapes --wait {end}{shlex.quote(workflow)}"


def _has_shapes(capture: Capture) -> bool:
    return capture.params.stacks and capture.params.shapes


def _kept(capture: Capture) -> list[CapturedRank]:
    """Traces whose files are there, by rank."""
    if capture.state not in _KEPT:
        return []
    return [rank for rank in capture.ranks if rank.url is not None and not rank.error]


def _source(capture: Capture, rank: CapturedRank) -> PlanSource:
    return PlanSource(
        capture=capture.capture,
        run=capture.run,
        rank=rank.rank,
        trace=rank.trace,
        sha256=rank.sha256,
        size_bytes=rank.bytes,
        requested_ns=capture.requested_ns,
    )
