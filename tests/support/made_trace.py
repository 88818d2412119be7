"""Traces made by hand, for what cannot be recorded here: times are whole microseconds after an origin."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_files import trace_text

from tightship_analyzers import trace as traces
from tightship_analyzers.trace.model import Trace

ORIGIN_NS = 1_790_857_026_000_000_000
MAIN, BACKWARD = 100, 101


@dataclass
class MadeTrace:
    """Collects events and reads them back through the real reader."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def _add(self, category: str, name: str, start_us: int, end_us: int, thread: int, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": thread if thread < 50 else 100, "tid": thread}
            | {"ts": f"{start_us}.000", "dur": f"{end_us - start_us}.000", "args": args}
        )

    def op(
        self,
        name: str,
        start_us: int,
        end_us: int,
        *,
        thread: int = MAIN,
        seq: int | None = None,
        dims: list[Any] | None = None,
        types: list[str] | None = None,
    ) -> None:
        args: dict[str, Any] = {} if seq is None else {"Sequence number": seq}
        args |= {} if dims is None else {"Input Dims": dims, "Input type": types or ["float"] * len(dims)}
        self._add("cpu_op", name, start_us, end_us, thread, **args)

    def mark(self, name: str, start_us: int, end_us: int, *, thread: int = MAIN) -> None:
        self._add("user_annotation", name, start_us, end_us, thread)

    def frame(self, name: str, start_us: int, end_us: int) -> None:
        number = len(self.events) + 1
        self._add("python_function", name, start_us, end_us, MAIN, **{"Python id": number, "Python parent id": None})

    def launch(self, start_us: int, end_us: int, *, name: str = "cudaLaunchKernel", link: int = 0) -> None:
        self._add("cuda_runtime", name, start_us, end_us, MAIN, correlation=link)

    def kernel(self, start_us: int, end_us: int, *, name: str = "gemm", link: int = 0, stream: int = 7) -> None:
        self._add("kernel", name, start_us, end_us, stream, device=0, stream=stream, correlation=link)

    def steps(self, *ends_us: int, width_us: int = 1) -> None:
        """Optimizer steps that end at these times."""
        for end_us in ends_us:
            self.mark("Optimizer.step#SGD.step", end_us - width_us, end_us)

    def read(self, folder: Path, **properties: Any) -> Trace:
        """Written to a file and read again; `properties` are further entries beside the events."""
        path = folder / "made.json"
        path.write_bytes(trace_text(self.events, before={"baseTimeNanoseconds": ORIGIN_NS} | properties, after={}))
        return traces.open(path)


def at(time_us: int) -> int:
    """The absolute ns of a time given to `MadeTrace`."""
    return ORIGIN_NS + 1000 * time_us
