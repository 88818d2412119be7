"""A program with a known model of host and device: what it records, and what it would take without a part of it.

The machine is as simple as can be: a call takes CALL, a kernel starts LATENCY after its call began, GAP after the event
before it in its stream and when what its stream waits for has ended; a call that waits returns RETURN after that.
It records calls and kernels; with `reported`, also what calls and streams wait for, as CUPTI's records do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from device_trace import DeviceTrace
from made_trace import BACKWARD, MAIN, ORIGIN_NS

from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace

CALL, LATENCY, GAP, RETURN, HAND_OVER = 4_000, 7_000, 1_000, 5_000, 3_000


@dataclass(frozen=True)
class Think:
    """The host is busy, within an operator or in Python."""

    ns: int
    tag: str = ""
    op: bool = True


@dataclass(frozen=True)
class Kernel:
    ns: int
    tag: str = "gemm"
    stream: int = 7
    late: int = 0
    """Launch latency and gap beyond the machine's: no two launches are alike."""


@dataclass(frozen=True)
class Sync:
    """The host waits for a stream; None: for all."""

    stream: int | None = None
    tag: str = ""


@dataclass(frozen=True)
class Read:
    """A copy to pageable memory, which holds the host until it has arrived."""

    ns: int
    tag: str = ""
    stream: int = 7


@dataclass(frozen=True)
class Wait:
    """A stream waits for what was launched on another one."""

    stream: int
    other: int


@dataclass(frozen=True)
class Backward:
    """Commands that another thread runs while this one waits."""

    commands: tuple[Command, ...]


Command = Think | Kernel | Sync | Read | Wait | Backward


@dataclass
class Recorded:
    """One run of a program."""

    reported: bool = False
    made: DeviceTrace = field(default_factory=DeviceTrace)
    bounds: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    spans: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Tag → when the host was in the commands of this tag."""
    _now: int = 0
    _thread: int = MAIN
    _free: dict[int, int] = field(default_factory=dict)
    _held: dict[int, int] = field(default_factory=dict)

    @property
    def window_ns(self) -> int:
        """From the finish of the first bound to that of the last."""
        return self.finished[-1] - self.finished[0]

    def at(self, tag: str) -> Intervals:
        """Absolute time of a tag."""
        starts, ends = zip(*self.spans.get(tag, [(0, 0)]), strict=True)
        return Intervals.of([ORIGIN_NS + ns for ns in starts], [ORIGIN_NS + ns for ns in ends])

    def read(self, folder: Path) -> Trace:
        """Through the real reader."""
        return self.made.read(folder)

    def _mark(self) -> None:
        self.bounds.append(self._now)
        self.finished.append(max(self._now, *self._free.values(), 0))

    def _call(self, name: str, until: int = 0) -> int:
        link = self.made.call(self._now, max(self._now + CALL, until), name=name, thread=self._thread)
        self._now = max(self._now + CALL, until)
        return link

    def _tell(self, name: str, link: int, stream: int | None, other: int = -1) -> None:
        if self.reported:
            on = -1 if stream is None else stream
            args = {"device": 0, "stream": on, "wait_on_stream": other, "correlation": link}
            self.made.add_ns("cuda_sync", name, self._now, self._now, pid=0, tid=on, **args)

    def _started(self, stream: int, late: int = 0) -> int:
        free = self._free.get(stream)
        ready = self._now + LATENCY if free is None else max(self._now + LATENCY, free + GAP)
        return max(ready, self._held.pop(stream, 0) + GAP) + late

    def _do(self, command: Command) -> None:
        begin = self._now
        match command:
            case Think():
                self._now += command.ns
                if command.op and command.ns:
                    self.made.host(command.tag or "aten::op", begin, self._now, thread=self._thread)
            case Kernel():
                start = self._started(command.stream, command.late)
                link = self._call("cudaLaunchKernel")
                self.made.on_device(start, start + command.ns, name=command.tag, link=link, stream=command.stream)
                self._free[command.stream] = start + command.ns
            case Sync():
                work = [*self._free.items(), *self._held.items()]  # what a stream waits for is separate work
                ends = [end for stream, end in work if command.stream in (None, stream)]
                name = "cudaDeviceSynchronize" if command.stream is None else "cudaStreamSynchronize"
                link = self._call(name, max(ends, default=-RETURN) + RETURN)
                self._tell("Context Sync" if command.stream is None else "Stream Sync", link, command.stream)
            case Read():
                start = self._started(command.stream)
                link = self._call("cudaMemcpyAsync", start + command.ns + RETURN)
                self.made.copy(
                    start,
                    start + command.ns,
                    name="Memcpy DtoH (Device -> Pageable)",
                    link=link,
                    stream=command.stream,
                )
                self._free[command.stream] = start + command.ns
            case Wait():
                self._tell("Stream Wait Event", self._call("cudaStreamWaitEvent"), command.stream, command.other)
                self._held[command.stream] = max(self._free.get(command.other, 0), self._held.get(command.other, 0))
            case Backward():
                self._now += HAND_OVER
                self._thread = BACKWARD
                first = self._now
                for inner in command.commands:
                    self._do(inner)
                name = "autograd::engine::evaluate_function: MmBackward0"
                self.made.host(name, first, max(self._now, first + 1), thread=BACKWARD)
                self._now = max(self._now, first + 1) + HAND_OVER
                self._thread = MAIN
        tag = getattr(command, "tag", "")
        if tag:
            self.spans.setdefault(tag, []).append((begin, self._now))


def run(step: Sequence[Command], steps: int = 4, *, reported: bool = False) -> Recorded:
    """Run a step again and again. The last mark only closes the last step."""
    recorded = Recorded(reported=reported)
    for number in range(steps):
        recorded._mark()
        begin = recorded._now
        for command in step:
            recorded._do(command)
        # Python between two steps: a step never takes no time.
        recorded._now += 1_000
        recorded.made.step(number, begin, recorded._now)
    recorded._mark()
    recorded.made.step(steps, recorded._now, recorded._now + 1_000)
    return recorded


def changed(step: Sequence[Command], tag: str, share: float) -> tuple[Command, ...]:
    """The program with everything of a tag scaled; 0 takes it out, launches and all."""
    result: list[Command] = []
    for command in step:
        if isinstance(command, Backward):
            result.append(Backward(changed(command.commands, tag, share)))
        elif getattr(command, "tag", None) != tag:
            result.append(command)
        elif share and isinstance(command, Think | Kernel | Read):
            result.append(replace(command, ns=round(command.ns * share)))
    return tuple(result)
