"""What is put into an opened stretch of time: calls on the training thread and events on the device."""

from __future__ import annotations

import random
from typing import Any

from injection.recording import Recording
from injection.sites import Base

US = 1_000
HOST_NS = 3 * US
"""An operator takes the host this long."""
LEAD_NS = 3 * US
"""Between two kernels."""


class Block:
    """Times are ns after the moment at which the recording was opened."""

    def __init__(self, recording: Recording, base: Base, at_ns: int, length_ns: int, rng: random.Random) -> None:
        recording.open_time(at_ns, length_ns)
        self.length_ns = length_ns
        self.rng = rng
        self._free_ns = 0
        self._recording, self._base, self._at_ns = recording, base, at_ns

    def any_of(self, *names: str) -> str:
        """One of them."""
        return self.rng.choice(names)

    def op(self, name: str, start_ns: int, end_ns: int, *, dims: Any = None, types: Any = None, **args: Any) -> None:
        """An operator."""
        if dims is not None:
            args |= {"Input Dims": dims, "Input type": types or []}
        self._host("cpu_op", name, start_ns, end_ns, args)

    def group(self, name: str, ranks: list[int]) -> None:
        """A process group, as torch lists them at the head of the file."""
        reported = self._recording.rest.setdefault("distributedInfo", {})
        reported["pg_config"] = [*reported.get("pg_config", ()), {"pg_name": name, "ranks": ranks}]

    def mark(self, name: str, start_ns: int, end_ns: int) -> None:
        """An annotation."""
        self._host("user_annotation", name, start_ns, end_ns, {})

    def frame(self, name: str, start_ns: int, end_ns: int) -> None:
        """A Python call."""
        self._host("python_function", name, start_ns, end_ns, {"Python id": -1, "Python parent id": None})

    def call(self, name: str, start_ns: int, end_ns: int) -> int:
        """A runtime call; the number that links it to what it starts."""
        link = self._recording.link()
        self._host("cuda_runtime", name, start_ns, end_ns, {"correlation": link})
        return link

    def on_device(
        self,
        start_ns: int,
        end_ns: int,
        link: int,
        name: str,
        *,
        category: str = "kernel",
        stream: int = -1,
        **args: Any,
    ) -> None:
        """A kernel, copy or set."""
        stream = self._base.stream if stream < 0 else stream
        where = {"pid": self._base.device, "tid": stream}
        own = {"device": self._base.device, "stream": stream, "correlation": link} | args
        self._add(category, name, start_ns, end_ns, where, own)

    def launched(self, op: str, start_ns: int, end_ns: int, kernel: str, *, at_ns: int = -1, **args: Any) -> None:
        """An operator, and the one kernel that it launches, which fills the time except for LEAD_NS.

        :param at_ns: when the host runs it; not given: as soon as it can, so that the device is what limits.
        """
        begin = self._free_ns if at_ns < 0 else at_ns
        shape = {key: args.pop(key) for key in ("dims", "types") if key in args}
        call = args.pop("call", "cudaLaunchKernel")
        self.op(op, begin, begin + HOST_NS, **shape)
        link = self.call(call, begin + US, begin + 2 * US)
        self.on_device(start_ns + LEAD_NS, end_ns, link, kernel, **args)
        self._free_ns = begin + HOST_NS

    def wait(self) -> None:
        """The host waits until the device has done all that was put in."""
        self.call("cudaEventSynchronize", self._free_ns + 100, self.length_ns)

    def _host(self, category: str, name: str, start_ns: int, end_ns: int, args: dict[str, Any]) -> None:
        pid, tid = self._base.thread
        self._add(category, name, start_ns, end_ns, {"pid": pid, "tid": tid}, args)

    def _add(
        self, category: str, name: str, start_ns: int, end_ns: int, where: dict[str, Any], args: dict[str, Any]
    ) -> None:
        self._recording.add(self._at_ns + start_ns, self._at_ns + end_ns, cat=category, name=name, **where, args=args)
