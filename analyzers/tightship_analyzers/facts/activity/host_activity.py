"""What a host thread did, by the names of operators, ranges, calls and Python frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from tightship_analyzers.facts.activity.cause import Cause
from tightship_analyzers.facts.activity.first_launches import choosing_operators, loading_launches
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.loader_ranges import LOADER
from tightship_analyzers.facts.program.saves import SAVE_FRAMES
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.columns import Bools, Int32s, Int64s
from tightship_analyzers.trace.communication import COLLECTIVE_OPS
from tightship_analyzers.trace.intervals import Intervals, union_of
from tightship_analyzers.trace.model import Names, Trace
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.step_marks import PROFILER

MAX_SILENCE_NS = 1_000_000
"""Between two operators the host runs Python that a trace without stacks does not show. Up to this long that is what a
gap is taken for (dispatching an operator from Python takes 5–100 µs); a longer silence could be anything."""

GARBAGE_FRAMES = re.compile(r"Python GC|<built-in function collect>|torchtitan/tools/utils\.py\(\d+\): collect")
"""Recorded with `record_python_gc_info`, or a call of `gc.collect`, which stacks show always."""

INPUT_MARKS = re.compile(
    re.escape(LOADER)
    + r""".*|\#\#\ (wait_for_batch|load_batch|next_batch|fetch_batch|get_batch|data_load|dataloader)\ \#\#  # TorchRec
    |\[pl\]\[profile\].*dataloader_next                                                                 # Lightning
    """,
    re.VERBOSE,
)
INPUT_FRAMES = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __next__")

COMPILING_OPS = re.compile(r".+ \(dynamo_timed\)")
COMPILING_FRAMES = re.compile(
    r"""torch/_dynamo/convert_frame\.py\(\d+\):\ .*
    |torch/_inductor/compile_fx\.py\(\d+\):\ _?(compile_fx|fx_codegen_and_compile|codegen_and_compile)\w*
    |torch/__init__\.py\(\d+\):\ compile
    |torch/_inductor/async_compile\.py\(\d+\):\ wait
    |torch/_inductor/runtime/triton_heuristics\.py\(\d+\):\ (_?precompile\w*|\w*autotune_to_one_config|benchmark_\w+
        |coordinate_descent_tuning|_make_launchers)
    |torch/_functorch/aot_autograd\.py\(\d+\):\ (aot_module_simplified|create_aot_dispatcher_function)
    |triton/compiler/compiler\.py\(\d+\):\ (compile|_init_handles)
    |triton/runtime/jit\.py\(\d+\):\ (_do_compile|warmup)
    |triton/runtime/autotuner\.py\(\d+\):\ (_bench|benchmark)
    |torch/utils/cpp_extension\.py\(\d+\):\ (load|load_inline|_jit_compile)
    |torch/jit/_(script|trace)\.py\(\d+\):\ (script|trace\w*)
    |tvm_ffi/cpp/\w+\.py\(\d+\):\ (build|load)\w*""",
    re.VERBOSE,
)
LOADING_CALLS = re.compile(r"cu(Module|Library)Load\w*|cudaLibraryLoad\w*|hipModuleLoad\w*|cuLink\w+|(nv|hip)rtc\w+")
LOADING_OVERHEADS = re.compile(r"Lazy Function Loading")
"""Code that the driver loads when it is called for the first time."""

WAITING_OPS = re.compile(r"(gloo|mpi):\w+|c10d::(barrier|monitored_barrier_)")
WAITING_FRAMES = re.compile(
    r"""torch/distributed/distributed_c10d\.py\(\d+\):\ (barrier|monitored_barrier|\w*object\w*)
    |torch/distributed/rendezvous\.py\(\d+\):\ .*
    |<built-in\ method\ \w+\ of\ torch\._C\._distributed_c10d\.\w*(Work|Store)\ object.*""",
    re.VERBOSE,
)
"""A collective of a device is only queued by the host; these hold it."""


def host_collectives(trace: Trace) -> Intervals:
    """When a job on the CPU communicated and computed nothing; empty where a device does both.

    [Note: collectives on the CPU] Gloo and its like carry a collective out in threads of their own, in a range
    (`gloo:all_reduce`), while the training thread waits in Python, which leaves no trace without stacks. So what it did
    not compute in such a range is communication, and so are the operators that issue collectives (`c10d::allreduce_`).
    """
    if trace.device_kind != "cpu":
        return Intervals.none()
    ops, marks, names = trace.host_ops, trace.annotations, trace.names
    sends = names.mask(ops.name, lambda name: COLLECTIVE_OPS.match(name) is not None)
    ranges = marks.take(names.mask(marks.name, lambda name: COLLECTIVE_OPS.match(name) is not None))
    if not sends.any() and not len(ranges):
        return Intervals.none()
    own = Intervals.of_table(ops.take(sends))
    return own | (Intervals.of_table(ranges) - Intervals.of_table(ops.take(~sends)))


@dataclass(frozen=True, slots=True, eq=False)
class HostThread:
    """One thread."""

    seen: Intervals
    """When it did anything that was recorded."""
    busy: Intervals
    """The same with pauses of at most MAX_SILENCE_NS."""
    causes: tuple[tuple[Cause, Intervals], ...]
    """When it was inside of what is a cause by itself, in order of precedence."""

    @classmethod
    def of(cls, trace: Trace, tid: int) -> Self:
        """Everything that the trace holds of it."""
        marks = _of(trace.annotations, tid)
        named = ~trace.names.mask(marks.name, lambda name: name.startswith(PROFILER))
        tables = (_of(trace.host_ops, tid), _of(trace.launches, tid), _of(trace.frames, tid), _of(trace.overheads, tid))
        seen = union_of((marks.spans(named), *(Intervals.of(table.start_ns, table.end_ns) for table in tables)))
        silent = seen.gaps(trace.start_ns, trace.end_ns)
        long = silent.end_ns - silent.start_ns > MAX_SILENCE_NS
        busy = Intervals(silent.start_ns[long], silent.end_ns[long]).gaps(trace.start_ns, trace.end_ns)
        loading = loading_launches(trace, tid) | choosing_operators(trace, tid)
        waiting = host_collectives(trace)
        return cls(seen, busy, tuple(_causes(trace.names, loading, waiting, marks, *tables)))


@dataclass(frozen=True, slots=True, eq=False)
class TrainingThread:
    """The one that runs the steps."""

    needs: ClassVar[Needs] = (Window,)

    thread: HostThread

    @property
    def elsewhere(self) -> Intervals:
        """When it was inside of a cause: what it runs there is no training work."""
        return union_of(spans for _, spans in self.thread.causes)

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs what a window needs."""
        window = facts[Window]
        return cls(HostThread.of(facts.trace, window.tid))


def _causes(
    names: Names,
    loading: Intervals,
    waiting: Intervals,
    marks: _Named,
    ops: _Named,
    calls: _Named,
    frames: _Named,
    overheads: _Named,
) -> Iterator[tuple[Cause, Intervals]]:
    def spans(*wanted: tuple[_Named, re.Pattern[str]]) -> Intervals:
        return union_of(table.spans(names.mask(table.name, matcher(pattern))) for table, pattern in wanted)

    yield Cause.GARBAGE_COLLECTION, spans((frames, GARBAGE_FRAMES))
    yield Cause.CHECKPOINT, spans((frames, SAVE_FRAMES))
    yield Cause.INPUT, spans((marks, INPUT_MARKS), (frames, INPUT_FRAMES))
    yield (
        Cause.COMPILATION,
        spans(
            (ops, COMPILING_OPS),
            (marks, COMPILING_OPS),
            (frames, COMPILING_FRAMES),
            (calls, LOADING_CALLS),
            (overheads, LOADING_OVERHEADS),
        )
        | loading,
    )
    yield Cause.COLLECTIVE_WAIT, spans((ops, WAITING_OPS), (marks, WAITING_OPS), (frames, WAITING_FRAMES)) | waiting


class _Named(NamedTuple):
    """What a look at names and times needs of a table."""

    start_ns: Int64s
    end_ns: Int64s
    name: Int32s

    def spans(self, rows: Bools) -> Intervals:
        """The time that these rows cover."""
        return Intervals.of(self.start_ns[rows], self.end_ns[rows])


def _of(table: Any, tid: int) -> _Named:
    rows = table.tid == tid
    return _Named(table.start_ns[rows], table.end_ns[rows], table.name[rows])
