"""Replayed graphs joined with the captures of the same graphs.

[Note: captures and replays] A replay names its kernels and nothing more: no operator launched them, and no sizes stand
by them. The capture of the graph has both, in another file, where its launches name their kernels (HIP's do). A
replayed graph is taken for a captured one if the same kernels ran in the same order, and the marks around both name the
same size: engines capture one graph for each batch size, and graphs of two sizes often have the same kernels. Where
several captures fit, such as those of equal layers, a kernel has only what all of them agree on.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tightship_analyzers.facts.memo import NotApplicable
from tightship_analyzers.facts.window.recording import captured_spans
from tightship_analyzers.metrics.launching_ops import launching_ops
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.model import Bools, Captured, CapturedCall, Int8s, Int32s, Int64s, Shapes, Trace
from tightship_platform.units import plural

CAPTURE_SIZE = re.compile(r"capture_(\d+)_")
REPLAY_SIZE = re.compile(r"execute_(\d+)_")
"""Tokens of the batch, padded to a size that has a graph: `capture_32_FULL`, `execute_32_context_0(…`. Source: vLLM."""
GRAPH_LAUNCH = re.compile(r"(cuda|hip|cu)GraphLaunch\w*")
MOST_TOUCHED = 64
"""Operators before a launch that are kept; the operands are among the last."""
UNKNOWN = Shapes("", "")

Call = CapturedCall | None


def join_captures(replay: Trace, captures: Iterable[Trace]) -> Trace | NotApplicable:
    """The replay with what the captures tell of its kernels. See [Note: captures and replays].

    :returns: or why they tell nothing.
    """
    replayed = list(_replayed(replay))
    if not replayed:
        return NotApplicable("the recording replays no graph between marks that name the size of its batch")
    numbers = {text: number for number, text in enumerate(replay.names)}
    fitting: dict[tuple[int, bytes], list[list[Call]]] = defaultdict(list)
    for capture in captures:
        for size, kernels, calls in _captured(capture):
            names = np.array([numbers.get(kernel, -1) for kernel in kernels], dtype=np.int32)
            fitting[size, names.tobytes()].append(calls)
    agreed = {key: _agreed(graphs) for key, graphs in fitting.items()}
    known: dict[CapturedCall, int] = {}
    rows: list[int] = []
    number: list[int] = []
    for size, events in replayed:
        key = size, replay.device_events.name[events].tobytes()
        for row, call in zip(events.tolist(), agreed.get(key, ()), strict=False):
            if call is not None:
                rows.append(row)
                number.append(known.setdefault(call, len(known)))
    if not rows:
        return NotApplicable("no captured graph has the size and the kernels of a replayed one")
    order = np.argsort(rows)
    captured = Captured(
        row=np.array(rows, dtype=np.int64)[order], call=np.array(number, dtype=np.int64)[order], calls=tuple(known)
    )
    whole = sum(len(events) for _, events in replayed)
    remark = (
        f"operators and sizes of {len(rows)} of {plural(whole, 'replayed kernel')} are those of the graphs' captures"
    )
    return replace(replay, captured=captured, warnings=[*replay.warnings, remark])


def _replayed(trace: Trace) -> Iterator[tuple[int, Int64s]]:
    """(size of the batch, kernels in order of start: rows in `Trace.device_events`) of each graph launch."""
    events, calls = trace.device_events, trace.launches
    is_graph = np.append(trace.names.mask(calls.name, lambda name: GRAPH_LAUNCH.fullmatch(name) is not None), False)
    rows = np.flatnonzero(is_graph[events.launch] & _is_kernel(events.kind))
    if not len(rows):
        return
    rows = rows[np.argsort(events.launch[rows], kind="stable")]
    launches, first = np.unique(events.launch[rows], return_index=True)
    sizes = _sizes(trace, REPLAY_SIZE, calls.start_ns[launches], calls.tid[launches])
    for size, own in zip(sizes, np.split(rows, first[1:]), strict=True):
        if size:
            yield size, own


def _is_kernel(kind: Int8s) -> Bools:
    kernels: Bools = (kind == EventKind.KERNEL) | (kind == EventKind.COLLECTIVE)
    return kernels


def _sizes(trace: Trace, named: re.Pattern[str], at_ns: Int64s, tid: Int32s) -> list[int]:
    """For each moment of a thread the size that a mark around it names; 0 where none or several do."""
    marks = trace.annotations.take(trace.names.mask(trace.annotations.name, lambda name: named.match(name) is not None))
    found = []
    for moment, thread in zip(at_ns.tolist(), tid.tolist(), strict=True):
        around = (marks.start_ns <= moment) & (marks.end_ns > moment) & (marks.tid == thread)
        sizes = {int(match[1]) for name in marks.name[around].tolist() if (match := named.match(trace.names[name]))}
        found.append(sizes.pop() if len(sizes) == 1 else 0)
    return found


def _captured(trace: Trace) -> Iterator[tuple[int, list[str], list[Call]]]:
    """(size of the batch, kernels, what is known of each) of each captured graph."""
    spans, calls = captured_spans(trace), trace.launches
    named = np.flatnonzero(calls.kernel >= 0)
    ops = launching_ops(trace.host_ops, calls.take(named))
    for start_ns, end_ns in zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True):
        first, stop = np.searchsorted(calls.start_ns[named], (start_ns, end_ns)).tolist()
        own = named[first:stop]
        if not len(own):
            continue
        [size] = _sizes(trace, CAPTURE_SIZE, calls.start_ns[own[:1]], calls.tid[own[:1]])
        if size:
            kernels = [trace.names[number] for number in calls.kernel[own].tolist()]
            yield size, kernels, list(_calls(trace, own, ops[first:stop], start_ns))


def _calls(trace: Trace, own: Int64s, ops: Int64s, since_ns: int) -> Iterator[CapturedCall]:
    """What is known of the launches of one graph.

    :param own: rows in `Trace.launches`.
    :param ops: rows in `Trace.host_ops`.
    """
    table, calls = trace.host_ops, trace.launches
    launched = Counter(ops.tolist())
    before = dict.fromkeys(calls.tid[own].tolist(), since_ns)
    for launch, op in zip(own.tolist(), ops.tolist(), strict=True):
        tid, at_ns = int(calls.tid[launch]), int(calls.start_ns[launch])
        first, stop = np.searchsorted(table.start_ns, (before[tid], at_ns)).tolist()
        near = np.arange(first, stop)[table.tid[first:stop] == tid]
        before[tid] = at_ns
        touched = [number for number in table.shapes[near].tolist() if number >= 0][-MOST_TOUCHED:]
        yield CapturedCall(
            op=trace.names[int(table.name[op])] if op >= 0 else "",
            inputs=trace.shapes[int(table.shapes[op])] if op >= 0 and table.shapes[op] >= 0 else UNKNOWN,
            op_kernels=launched[op],
            touched=tuple(trace.shapes[number] for number in touched),
        )


def _agreed(graphs: Sequence[list[Call]]) -> list[Call]:
    """Per kernel what all graphs say."""
    return [calls[0] if len(set(calls)) == 1 else None for calls in zip(*graphs, strict=True)]
