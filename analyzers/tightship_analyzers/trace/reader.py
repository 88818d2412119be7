"""Opening a trace, whatever its format and wherever it is."""

from __future__ import annotations

import os

from tightship_analyzers.trace.assemble import Assembler
from tightship_analyzers.trace.blocks import Progress, TextSource
from tightship_analyzers.trace.cutter import Cutter
from tightship_analyzers.trace.kineto_columns import EventColumns
from tightship_analyzers.trace.limits import DEFAULT_LIMITS, Limits, TraceError
from tightship_analyzers.trace.model import Trace


def open_trace(
    source: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS, progress: Progress | None = None
) -> Trace:
    """Reads one rank's trace in constant memory per event.

    `source` is a path or an fsspec URL of Kineto JSON, plain or gzip (told apart by content, not by name).
    What is whole in a cut-off or damaged file is read; `Trace.warnings` says what is not.

    :raises TraceError: the source cannot be opened, is no trace, or exceeds `limits`.
    """
    text = TextSource(source, limits, progress)
    cutter = Cutter(text, limits)
    columns = EventColumns(limits)
    for events in cutter:
        columns.add(events)
        if columns.events > limits.events:
            raise TraceError(f"Trace {text.source} holds more than {limits.events} events; record a shorter window")
    assembler = Assembler(columns, cutter.members, limits, cut_off=cutter.cut_off)
    trace = assembler.trace(text.source)
    trace.warnings[:0] = cutter.warnings
    if not trace.span_ns and not trace.warnings:
        trace.warnings.append("the trace holds no events with a duration")
    return trace
