"""Traces of a device made by hand, to the nanosecond: times are whole nanoseconds after the origin of `made_trace`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from made_trace import MAIN, ORIGIN_NS, MadeTrace


@dataclass
class DeviceTrace(MadeTrace):
    """Calls on the host and what they start on the device; a `link` joins the two."""

    _links: int = 0

    def add_ns(self, category: str, name: str, start_ns: int, end_ns: int, *, pid: int, tid: int, **args: Any) -> None:
        def us(ns: int) -> str:
            return f"{ns // 1000}.{ns % 1000:03d}"

        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
            | {"ts": us(start_ns), "dur": us(end_ns - start_ns), "args": args}
        )

    def call(
        self, start_ns: int, end_ns: int, *, name: str = "cudaLaunchKernel", thread: int = MAIN, link: int = -1
    ) -> int:
        """A runtime call; the number that links events to it."""
        if link < 0:
            self._links += 1
            link = self._links
        self.add_ns("cuda_runtime", name, start_ns, end_ns, pid=100, tid=thread, correlation=link)
        return link

    def on_device(
        self,
        start_ns: int,
        end_ns: int,
        *,
        name: str = "gemm",
        link: int = -1,
        stream: int = 7,
        device: int = 0,
        category: str = "kernel",
        **args: Any,
    ) -> None:
        """A kernel, or with `category` a copy or set."""
        own = {"device": device, "stream": stream, "correlation": link} | args
        self.add_ns(category, name, start_ns, end_ns, pid=device, tid=stream, **own)

    def pair(self, call_ns: tuple[int, int], device_ns: tuple[int, int], **of_event: Any) -> None:
        """A call and the event that it launched."""
        self.on_device(*device_ns, link=self.call(*call_ns), **of_event)

    def copy(
        self, start_ns: int, end_ns: int, *, name: str = "Memcpy HtoD (Pinned -> Device)", **of_event: Any
    ) -> None:
        self.on_device(start_ns, end_ns, name=name, category="gpu_memcpy", **of_event)

    def host(
        self, name: str, start_ns: int, end_ns: int, *, category: str = "cpu_op", thread: int = MAIN, **args: Any
    ) -> None:
        """An operator, or with `category` an annotation or frame."""
        self.add_ns(category, name, start_ns, end_ns, pid=100, tid=thread, **args)

    def step(self, number: int, start_ns: int, end_ns: int) -> None:
        self.host(f"ProfilerStep#{number}", start_ns, end_ns, category="user_annotation")

    def memory(self, at_ns: int, size: int, *, device: int = 0, **totals: int) -> None:
        """An allocation, or with a negative size a free; `totals` are `allocated` and `reserved`."""
        args = {"Device Type": 0 if device < 0 else 1, "Device Id": max(device, 0), "Bytes": size, "Addr": 1}
        args |= {f"Total {key.title()}": value for key, value in totals.items()}
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": MAIN}
            | {"ts": f"{at_ns // 1000}.{at_ns % 1000:03d}", "args": args}
        )


def moment(ns: int) -> int:
    """The absolute time of one given to `DeviceTrace`."""
    return ORIGIN_NS + ns
