"""Which module calls of a trace are a model's layers: from nothing but the frames of `nn.Module` calls.

A model is the outermost module that is called again and again; its layers are the calls of one class of which several
instances run below one parent and take most of the time. Containers that are not called (ModuleList) do not show.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.names import matcher

LEAST_SHARE_FRAC = 0.3
"""Of the model's forward that its layers must take."""
MOST_DEPTH = 60

_MODULE = re.compile(r"nn\.Module: (?P<kind>.+)_(?P<number>\d{1,9})", re.DOTALL)


@dataclass(slots=True)
class Call:
    """One call of a module's forward, on the thread that trains."""

    name: str
    """`Block_3`: class and the number of the instance."""
    kind: str
    start_ns: int
    end_ns: int
    depth: int
    calls: list[Call] = field(default_factory=list)
    """Calls of modules inside, in order."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of the whole model."""

    start_ns: int
    end_ns: int
    layers: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """The model's layers, and each whole forward that the trace holds."""

    model: str
    block: str
    names: tuple[str, ...]
    forwards: tuple[Forward, ...]
    tid: int
    """Row in `Trace.threads` of the training thread."""


def find_layers(trace: Trace, backward: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Layers | str:
    """The layers; where there are none, in words why.

    :param backward: (rows, 2) starts and ends of backward on the training thread: calls inside it recompute.
    """
    frames = trace.frames
    modules = trace.names.mask(frames.name, matcher(_MODULE))
    if not modules.any():
        return "the trace holds no module calls; record with stacks (tightship profile --stacks)"
    tids, counts = np.unique(frames.tid[modules], return_counts=True)
    tid = int(tids[counts.argmax()])
    rows = np.flatnonzero(modules & (frames.tid == tid))
    starts, ends = frames.start_ns[rows], frames.end_ns[rows]
    at = np.searchsorted(backward[:, 0], starts, side="right") - 1
    recomputed = (at >= 0) & (ends <= backward[at, 1]) if len(backward) else np.zeros(len(rows), dtype=np.bool_)
    roots = _tree(trace, rows[~recomputed])
    best: tuple[int, str, str, str, tuple[str, ...]] | None = None
    total: dict[str, int] = defaultdict(int)
    for call in roots:
        total[call.name] += call.end_ns - call.start_ns
    for root in {call.name: call for call in roots}.values():
        found = _group([call for call in roots if call.name == root.name])
        if found is not None and (best is None or found[0] > best[0]):
            best = (found[0], root.name, root.kind, *found[1:])
    if best is None:
        return "no class of module is called several times below one parent; plan from `tightship offload measure`"
    _, root_name, model, block, names = best
    forwards = []
    for call in roots:
        if call.name == root_name:
            layers = tuple(one for one in _flat(call) if one.name in names)
            if tuple(one.name for one in layers) == names:  # a call that recording cut off lacks some
                forwards.append(Forward(call.start_ns, call.end_ns, layers))
    if not forwards:
        return "the trace holds no whole forward of the model; record a longer window"
    return Layers(model, block, names, tuple(forwards), tid)


def _tree(trace: Trace, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[Call]:
    """Outermost calls, with those inside them."""
    frames = trace.frames
    roots: list[Call] = []
    open_: list[Call] = []
    for row in rows.tolist():
        start, end = int(frames.start_ns[row]), int(frames.end_ns[row])
        while open_ and open_[-1].end_ns <= start:
            open_.pop()
        matched = _MODULE.fullmatch(trace.names[int(frames.name[row])])
        if matched is None or len(open_) >= MOST_DEPTH:
            continue
        name = f"{matched['kind']}_{matched['number']}"
        call = Call(name, matched["kind"], start, end, len(open_))
        (open_[-1].calls if open_ else roots).append(call)
        open_.append(call)
    return roots


def _group(roots: list[Call]) -> tuple[int, str, tuple[str, ...]] | None:
    """(time, class, names in order of first call) of the outermost like calls below one parent that take most time."""
    whole = sum(call.end_ns - call.start_ns for call in roots)
    level = roots
    while level:
        spent: dict[tuple[str, str], int] = defaultdict(int)
        members: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for parent in level:
            for call in parent.calls:
                key = (parent.name, call.kind)
                spent[key] += call.end_ns - call.start_ns
                members[key][call.name] = None
        several = {key: ns for key, ns in spent.items() if len(members[key]) > 1 and ns >= LEAST_SHARE_FRAC * whole}
        if several:
            key = max(several, key=lambda one: several[one])
            return several[key], key[1], tuple(members[key])
        level = [call for parent in level for call in parent.calls]
    return None


def _flat(call: Call) -> list[Call]:
    found = []
    waiting = list(call.calls)
    while waiting:
        one = waiting.pop(0)
        found.append(one)
        waiting = one.calls + waiting
    return found
