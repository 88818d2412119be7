"""Opening a trace, whatever its format and wherever it is."""

from __future__ import annotations

import os

from tightship_analyzers.trace.blocks import Progress, TextSource
from tightship_analyzers.trace.kineto.assemble import Assembler
from tightship_analyzers.trace.kineto.columns import EventColumns
from tightship_analyzers.trace.kineto.event_room import EventRoom
from tightship_analyzers.trace.kineto.event_stream import EventStream
from tightship_analyzers.trace.kineto.second_process import SecondReader
from tightship_analyzers.trace.limits import DEFAULT_LIMITS, Limits
from tightship_analyzers.trace.model import Trace


def open_trace(
    source: str | os.PathLike[str],
    *,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
    processes: int = 1,
) -> Trace:
    """Reads one rank's trace in constant memory per event.

    `source` is a path or an fsspec URL of Kineto JSON, plain or gzip (distinguished by content, not by name).
    What is whole in a cut-off or damaged file is read; `Trace.warnings` says what is not.

    :param processes: with 2 a second process reads the end of a large local file meanwhile; it starts as processes of
        `multiprocessing` do, so a script that asks for it needs its `if __name__ == "__main__":`.
    :raises TraceError: the source cannot be opened, is no trace, or exceeds `limits`, or the memory that there is.
    """
    text = TextSource(source, limits, progress)
    second = SecondReader.start(source, limits) if processes > 1 else None
    event_stream = EventStream(text, limits, second)
    columns, room = EventColumns(limits), EventRoom(text.source, limits)
    try:
        for events in event_stream:
            columns.add(events)
            room.check(columns.events)
        columns.add_waiting()
        if event_stream.rest_is_elsewhere and second is not None:
            second.append_to(columns)
            room.check(columns.events)
            text.mark_complete()
    finally:
        if second is not None:
            second.stop()
    assembler = Assembler(columns, event_stream.members, limits, cut_off=event_stream.cut_off)
    trace = assembler.trace(text.source)
    trace.warnings[:0] = event_stream.warnings
    if not trace.span_ns and not trace.warnings:
        trace.warnings.append("the trace holds no events with a duration")
    return trace
