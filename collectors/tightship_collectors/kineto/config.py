"""What Kineto receives: the config text of one trace, and the instant at which it starts.

[Note: when a trace can start]
Kineto looks at a pending request once per second (its controller tick). A tick takes the request up when the start time
is at most one second (plus the warm-up) ahead, and refuses it, silently, when the start is past or the warm-up no
longer fits. `PROFILE_START_TIME=0` means two seconds from now: exactly on the edge for a process whose tick coincides
with its poll, which is the common case from the second trace on, because the end of a trace restarts the tick: from
then on it falls on that end plus whole seconds. So the start is chosen at the very moment the config is handed out,
and lies a quarter of a second behind the tick that will take it up; this is never refused and a second faster than 0.
Where the tick is not known (first trace, or the agent was restarted) the start is 1.5 s ahead: a fresh process has its
first tick one second after the request, and any other phase but a few milliseconds in a thousand fits as well.
Source: libkineto/src/AsyncActivityProfilerHandler.cpp, ConfigDerivedState::canStart; measured with torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tightship_platform.errors import Invalid
from tightship_platform.units import NS_PER_MS, NS_PER_S
from tightship_platform.wire import MAX_CAPTURE_NS, MAX_ITERATIONS, MAX_PASSES, MIN_CAPTURE_NS, CaptureParams

TICK_NS = NS_PER_S
"""Period of Kineto's controller."""
AFTER_TICK_NS = 250 * NS_PER_MS
"""How far behind the tick that takes the request up the trace starts."""
MIN_TICK_AHEAD_NS = 60 * NS_PER_MS
"""A tick that is nearer than this may come before the job has read the config; the next one is taken."""
UNKNOWN_TICK_AHEAD_NS = 1_500 * NS_PER_MS
LATER_NS = 200 * NS_PER_MS
COMMON_AHEAD_NS = 2_750 * NS_PER_MS
"""Least time between the decision to trace several processes and their common start."""

_SAFE_PATH = re.compile(r"/[A-Za-z0-9_./-]{1,400}", re.ASCII)
_SAFE_ID = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)


def check_params(params: CaptureParams) -> CaptureParams:
    """The parameters, if they are within bounds.

    :raises Invalid: neither or both of duration and iterations are given, or one is out of range.
    """
    if (params.duration_ns is None) == (params.iterations is None):
        raise Invalid("Capture", f"{params.duration_ns} ns, {params.iterations} iterations", "one of the two")
    for name in ("stacks", "shapes", "memory", "insist"):
        if not isinstance(getattr(params, name), bool):
            raise Invalid(f"Capture option {name}", getattr(params, name), "true or false")
    if not _is_int(params.passes) or not 1 <= params.passes <= MAX_PASSES:
        raise Invalid("Passes of the capture", params.passes, f"1 to {MAX_PASSES}")
    if params.duration_ns is not None:
        if not _is_int(params.duration_ns) or not MIN_CAPTURE_NS <= params.duration_ns <= MAX_CAPTURE_NS:
            raise Invalid("Duration of the capture", params.duration_ns, "10 ms to 60 s")
    elif not _is_int(params.iterations) or not 1 <= (params.iterations or 0) <= MAX_ITERATIONS:
        raise Invalid("Iterations of the capture", params.iterations, f"1 to {MAX_ITERATIONS}")
    return params


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_trace_path(path: Path) -> Path:
    """The path, if Kineto takes it as it is: its config knows no quoting, and `.json` is where it inserts the pid.

    :raises Invalid: the path is relative, or holds a character or a part that Kineto would read differently.
    """
    text = str(path)
    if not _SAFE_PATH.fullmatch(text) or ".." in text or ".json" in text.removesuffix(".json"):
        raise Invalid("Trace path", text, "an absolute path of letters, digits, dots, dashes and underscores")
    return path


def final_path(requested: Path, pid: int) -> Path:
    """Where Kineto leaves the complete trace of `pid` when its config names `requested`."""
    return requested.with_name(f"{requested.stem}_{pid}.json")


def choose_start_ns(now_ns: int, tick_ns: int | None, warmup_ns: int, tries: int = 1) -> int:
    """UTC start of a trace whose config is handed out now. See [Note: when a trace can start].

    :param tick_ns: any past controller tick of the process; None when none is known.
    :param tries: how often it was tried, this time included. Poll and tick keep their distance for minutes, so that a
        start that was refused would be refused again; each try is therefore a little later.
    """
    if tick_ns is None:
        return now_ns + UNKNOWN_TICK_AHEAD_NS + (tries - 1) * LATER_NS + warmup_ns
    ahead = (tick_ns - now_ns) % TICK_NS
    if ahead < MIN_TICK_AHEAD_NS:
        ahead += TICK_NS
    return now_ns + ahead + AFTER_TICK_NS + warmup_ns


def choose_common_start_ns(now_ns: int, tick_ns: Sequence[int], warmup_ns: int) -> int:
    """UTC start at which several processes begin together, about three seconds ahead.

    Every process must poll once before it, and its tick before it must not fall onto the start itself.

    :param tick_ns: a past controller tick of each process. For a process that was never traced its last poll serves:
        its first tick comes one second after the poll that brings the config.
    """
    earliest = now_ns + COMMON_AHEAD_NS + warmup_ns
    candidates = range(earliest, earliest + TICK_NS, 50 * NS_PER_MS)

    def slack(start: int) -> int:
        return min(((start - warmup_ns - tick) % TICK_NS for tick in tick_ns), default=TICK_NS)

    return next((c for c in candidates if slack(c) >= AFTER_TICK_NS), max(candidates, key=slack))


def render(
    params: CaptureParams,
    *,
    trace: Path,
    trace_id: str,
    start_ns: int | None = None,
    start_iteration: int = 0,
    warmup: int = 0,
) -> str:
    """The config text of one trace.

    :param trace: ends in `.json`; Kineto writes `final_path(trace, pid)`.
    :param trace_id: comes back as the trace's top-level `trace_id`.
    :param start_ns: UTC start, for a duration; the counterpart for iterations is `start_iteration`.
    :param warmup: whole seconds, or iterations, in which buffers are set up and nothing is kept.
    :raises Invalid: anything is out of range or cannot be written in Kineto's syntax.
    """
    check_params(params)
    check_trace_path(trace)
    if not _SAFE_ID.fullmatch(trace_id):
        raise Invalid("Trace id", trace_id, "letters, digits, dots, dashes and underscores")
    lines: dict[str, object] = {"ACTIVITIES_LOG_FILE": trace, "REQUEST_TRACE_ID": trace_id}
    if params.duration_ns is not None:
        if start_ns is None or start_ns <= 0:
            raise Invalid("Start of the trace", start_ns, "a time")
        lines["PROFILE_START_TIME"] = start_ns // NS_PER_MS
        lines["ACTIVITIES_DURATION_MSECS"] = params.duration_ns // NS_PER_MS
        lines["ACTIVITIES_WARMUP_PERIOD_SECS"] = warmup
    else:
        lines["PROFILE_START_ITERATION"] = start_iteration
        lines["ACTIVITIES_ITERATIONS"] = params.iterations
        lines["ACTIVITIES_WARMUP_ITERATIONS"] = warmup
        # Without this line a process that counts no steps would silently record half a second instead.
        lines["ACTIVITIES_DURATION_MSECS"] = 0
    lines["PROFILE_REPORT_INPUT_SHAPES"] = str(params.shapes).lower()
    lines["PROFILE_WITH_STACK"] = str(params.stacks).lower()
    lines["PROFILE_PROFILE_MEMORY"] = str(params.memory).lower()
    return "".join(f"{key}={value}\n" for key, value in lines.items())
