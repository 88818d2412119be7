"""Jobs on a GPU, played through by hand: a host that dispatches, streams that run what was launched, in order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_trace import DeviceTrace
from made_trace import BACKWARD, MAIN, ORIGIN_NS
from trace_files import trace_text

from tightship_analyzers import trace as traces
from tightship_analyzers.hardware import find
from tightship_analyzers.trace.model import Trace

US, MS = 1_000, 1_000_000
LAUNCH_NS = 5 * US
LATENCY_NS = 4 * US
PLACE = "train.py:12 (train_step)"
FRAME = "train.py(12): train_step"


@dataclass
class GpuJob(DeviceTrace):
    """Each call advances the host's clock; kernels start when they were launched and their stream is free."""

    device: str = "NVIDIA A100-SXM4-80GB"
    now_ns: int = 100 * US
    free_ns: dict[int, int] = field(default_factory=dict)
    """Stream → when it has done all that was launched."""
    stacks: bool = True
    rank: int | None = None
    distributed: dict[str, Any] = field(default_factory=dict)
    """What `distributedInfo` has besides the rank."""
    _steps: int = 0
    _next_ns: int | None = None
    _seq: int = 0

    def kernel_of(
        self, duration_ns: int, name: str = "ampere_bf16_s16816gemm", *, stream: int = 7, **args: Any
    ) -> None:
        """Launches something at the host's present time."""
        category = args.pop("category", "kernel")
        call = args.pop("call", "cudaLaunchKernel" if category == "kernel" else "cudaMemcpyAsync")
        link = self.call(self.now_ns, self.now_ns + LAUNCH_NS, name=call)
        start_ns = max(self.free_ns.get(stream, 0), self.now_ns + LATENCY_NS)
        self.on_device(start_ns, start_ns + duration_ns, name=name, link=link, stream=stream, category=category, **args)
        self.free_ns[stream] = start_ns + duration_ns
        self.now_ns += LAUNCH_NS

    def op(  # type: ignore[override]
        self,
        name: str,
        *kernels: tuple[int, str],
        dims: Any = None,
        types: Any = None,
        host_ns: int = 2 * US,
        **more: Any,
    ) -> None:
        """An operator that launches kernels (duration, name) and takes the host a little time besides."""
        begun = self.now_ns
        self.now_ns += host_ns
        for duration_ns, kernel in kernels:
            self.kernel_of(duration_ns, kernel, **more)
        self.host(name, begun, self.now_ns, **_shapes(dims, types))

    def wait(self, call: str = "cudaStreamSynchronize", stream: int = 7) -> None:
        """The host blocks until the stream is empty."""
        begun = self.now_ns
        self.now_ns = max(self.now_ns + US, self.free_ns.get(stream, 0))
        self.call(begun, self.now_ns, name=call)

    def pause(self, duration_ns: int) -> None:
        """The host does something else."""
        self.now_ns += duration_ns

    def drain(self) -> None:
        """The host is as slow as the device: it waits, without a call that shows it."""
        self.now_ns = max([self.now_ns, *self.free_ns.values()])

    def frame_of(self, name: str, begun_ns: int) -> None:
        """A Python call from then to now."""
        self.python(name, begun_ns, self.now_ns)

    def python(self, name: str, start_ns: int, end_ns: int) -> None:
        args = {"Python id": len(self.events) + 1, "Python parent id": None}
        self.host(name, start_ns, end_ns, category="python_function", **args)

    def step_of(self, begun_ns: int) -> None:
        """Marks a step from then to now."""
        self._steps += 1
        self.step(self._steps, begun_ns, self.now_ns)
        if self.stacks:
            self.python(FRAME, begun_ns, self.now_ns)

    def begin_step(self) -> None:
        """The next step begins with a kernel; then recording ends."""
        self._next_ns = self.now_ns
        self.kernel_of(10 * US)

    def read(self, folder: Path) -> Trace:
        (folder / "job.json").write_bytes(self.text())
        return traces.open(folder / "job.json")

    def _properties(self) -> dict[str, Any]:
        known = find(self.device)
        return {"id": 0, "name": self.device} | ({"numSms": known.units} if known else {})

    def text(self) -> bytes:
        """The trace as Kineto writes it; a last step, of which little was recorded, closes the one before."""
        self.step(self._steps + 1, self.now_ns if self._next_ns is None else self._next_ns, self.now_ns + US)
        before = {"baseTimeNanoseconds": ORIGIN_NS, "deviceProperties": [self._properties()]}
        reported = self.distributed | ({} if self.rank is None else {"rank": self.rank})
        after = {"distributedInfo": {"backend": "nccl"} | reported} if reported else {}
        return trace_text(self.events, before=before, after=after)


def _shapes(dims: Any, types: Any) -> dict[str, Any]:
    return {} if dims is None else {"Input Dims": json.loads(json.dumps(dims)), "Input type": types}


__all__ = ["BACKWARD", "FRAME", "MAIN", "MS", "PLACE", "US", "GpuJob"]
