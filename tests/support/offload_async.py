"""The CPU as a device whose kernels and copies run later than they are issued: see offload_streams.py.

[Note: what is late] In the user's thread, and in lanes that give their work to a stream, every operator on device
memory is put into the stream; what it will return is there at once, full of NaN. Memory of the backend's host buffers
and of Python's (mapped files), and what the host makes of it, is the host's: operators on it alone run at once, as on a
machine with a GPU, whether or not a copy into it is over. Operators on both are copies, or wait for the stream as
`.cpu()` would; so does all that reads a number. Random numbers are drawn when they are asked for, as a GPU's generator
moves on then.

Blocks of device memory move between storages when that is issued, while kernels on their way keep the addresses that
they were given: so what a stream is given holds addresses, and not tensors. Memory of one stream that another one reads
is NaN if nobody holds it any more when it is read, for its allocator has given it to somebody else by then.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from offload_operators import Kind, Result, kind_of, results_of, tensors_in, written
from offload_streams import Event, Streams
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tightship_offload.backends.base import COMPUTE, CopyOut, Lane
from tightship_offload.backends.cpu import CpuBackend
from tightship_offload.backends.race_detector import Ledger
from tightship_offload.backends.staging import Staging

KERNEL_NS = 1000
"""What each operator takes, in the device's time."""
_POISON = 0xFF
_frombuffer = torch.frombuffer


class AsyncBackend(CpuBackend):
    """See the module. Use it inside of `computing()`."""

    def __init__(
        self,
        *,
        deadline_s: float = 60.0,
        ledger: Ledger | None = None,
        delay_s: float = 0.0,
        seed: int = 0,
        prompt: dict[str, float] | None = None,
        copy_ns_per_byte: float = 1.0,
    ) -> None:
        """:param prompt: see `Streams`; by lane, and `COMPUTE`."""
        super().__init__(deadline_s=deadline_s, ledger=ledger, delay_s=delay_s, seed=seed)
        self.streams = Streams(seed, prompt)
        self.copy_ns_per_byte = copy_ns_per_byte
        self.host_waits: Counter[str] = Counter()
        """By whose work, how often the host has waited for an event."""
        self._on_host: set[str] = set()
        self._here = threading.local()
        self._host_ranges: list[tuple[int, int]] = []
        self._blocks: list[Tensor] = []
        """Every one that there was: work on its way holds addresses."""
        self._staging = Staging(self)

    # ---- what the engine asks of a machine -------------------------------------------------------------------------

    def device_buffer(self, size_bytes: int) -> Tensor:
        buffer = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
        _poison(buffer)
        buffer.untyped_storage().is_block = True  # type: ignore[attr-defined]
        self._blocks.append(buffer)
        return buffer

    def host_buffer(self, size_bytes: int) -> Tensor:
        buffer = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
        start = buffer.data_ptr()
        self._host_ranges = sorted([*self._host_ranges, (start, start + size_bytes)])
        return buffer

    def lane(self, name: str, *, on_host: bool = False, by_place: bool = False) -> Lane:
        if on_host:
            self._on_host.add(name)
        return super().lane(name, on_host=on_host, by_place=by_place)

    def enter(self, lane: str) -> AbstractContextManager[object]:
        super().enter(lane)
        self._here.name = lane
        return self._given_to(None if lane in self._on_host else lane)

    def record(self) -> Event | None:
        stream = self._stream
        return None if stream is None else self.streams.record(stream)

    record_timed = record

    def elapsed_ns(self, begun: Event, ended: Event) -> int | None:
        if begun.reached_ns is None or ended.reached_ns is None:
            return None
        return ended.reached_ns - begun.reached_ns

    def order_after(self, device_event: Event) -> None:
        # A lane that works on the host has a stream all the same, for which no work waits.
        self.streams.wait(self._stream or self._here.name, device_event)

    def finish(self, device_event: Event, deadline_s: float) -> bool:
        self.host_waits[getattr(self._here, "name", COMPUTE)] += 1
        return self.streams.finish(device_event, deadline_s)

    def is_done(self, device_event: Event) -> bool:
        return device_event.reached_ns is not None

    def abandon(self, slot: Tensor) -> None:
        slot.fill_(_POISON)  # in the lane's stream

    def copy_out(self, copies: Sequence[CopyOut], largest_bytes: int) -> None:
        self._staging.copy_out(copies, largest_bytes)

    def close(self) -> None:
        with self._closing:
            super().close()
            if not self.streams.is_closed:
                self.synchronize()

    # ---- what a test does with it ----------------------------------------------------------------------------------

    @contextmanager
    def computing(self) -> Iterator[AsyncBackend]:
        """This thread's operators go to the device, which ends with the block."""
        with ExitStack() as stack:
            stack.callback(self._end)
            stack.enter_context(self._given_to(COMPUTE))
            stack.enter_context(patch.object(torch, "frombuffer", self._frombuffer))
            stack.callback(self.close)
            yield self

    def _end(self) -> None:
        with self._closing:  # a model that nobody holds any more is closed by a thread of its own
            self.streams.close()

    def synchronize(self, stream: str | None = None) -> None:
        """Wait for all that a stream was given; None: that each was given."""
        for name in self.streams.names if stream is None else (stream,):
            if not self.streams.finish(self.streams.record(name), self.deadline_s):
                raise TimeoutError(f"stream {name} was not done in {self.deadline_s:g} s")

    def are_on_host(self, tensors: Iterable[Tensor]) -> None:
        """These are in host memory; what was made before the backend may be anywhere, and counts as the device's."""
        self._of_host(list(tensors))

    # ---- operators -------------------------------------------------------------------------------------------------

    @property
    def _stream(self) -> str | None:
        """Of this thread; None: a lane that works on the host."""
        found: str | None = getattr(self._here, "stream", COMPUTE)
        return found

    @contextmanager
    def _given_to(self, stream: str | None) -> Iterator[None]:
        self._here.stream = stream
        with _Operators(self._operator):
            yield

    def _operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch._C.DisableTorchFunctionSubclass():  # to look at a parameter is not to touch it
            kind, stream = kind_of(func), self._stream
            if kind is Kind.AT_ONCE:
                return func(*args, **kwargs)
            tensors = list(tensors_in((args, kwargs)))
            on_host = [self._is_host(tensor) for tensor in tensors]
            if tensors and all(on_host):
                return self._of_host(func(*args, **kwargs))
            if stream is None:
                if tensors:
                    self.synchronize(COMPUTE)
                return self._of_host(func(*args, **kwargs))
            if not tensors:
                return func(*args, **kwargs)
            if any(on_host) and func is torch.ops.aten.copy_.default:
                size_bytes = tensors[0].numel() * tensors[0].element_size()
                self._issue(stream, func, args, kwargs, cost_ns=round(size_bytes * self.copy_ns_per_byte))
                if not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False)):
                    self.synchronize(stream)
                return args[0]
            if kind is Kind.RANDOM and not any(on_host):
                if self._draw(stream, func, args, kwargs, tensors):
                    return args[0]
            elif kind is Kind.LATE and not any(on_host) and kwargs.get("device") is None:
                results = results_of(func, args, kwargs)
                if results is not None:
                    return self._issue(stream, func, args, kwargs, results)
            self.synchronize(stream)
            return func(*args, **kwargs)

    def _issue(
        self,
        stream: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: tuple[Result, ...] = (),
        *,
        cost_ns: int = KERNEL_NS,
    ) -> Any:
        made = [result.make() for result in results]
        for tensor in tensors_in(made):
            _poison(tensor)
            tensor.untyped_storage().made_in = stream  # type: ignore[attr-defined]
        targets = [_each(one, self._addressed) for one in made]
        given, named = _each(args, self._addressed), {key: _each(v, self._addressed) for key, v in kwargs.items()}
        lent = [one for one in tensors_in(given) if _made_in(one) not in (None, stream)] if stream != COMPUTE else []

        def work() -> None:
            for tensor in filter(_is_let_go, lent):
                _poison(tensor)  # its own stream's allocator has given the memory to somebody else
            found = func(*given, **named)
            for target, value in zip(targets, found if isinstance(found, tuple) else (found,), strict=False):
                for into, one in zip(tensors_in(target), tensors_in(value), strict=True):
                    into.copy_(one)

        self.streams.issue(stream, work, cost_ns)
        if results:
            return made[0] if len(made) == 1 else tuple(made)
        return written(func, args, kwargs)

    def _draw(
        self, stream: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> bool:
        """Fill a tensor with random numbers, which do not depend on what is in it. False: they do."""
        filled = tensors[0]
        if len(tensors) > 1 or filled is not args[0] or not func._schema.name.endswith("_"):
            return False
        drawn = torch.empty_like(filled)
        if drawn.stride() != filled.stride():
            return False
        func(drawn, *args[1:], **kwargs)
        self._issue(stream, torch.ops.aten.copy_.default, (filled, drawn), {})
        return True

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _is_host(self, tensor: Tensor) -> bool:
        if getattr(tensor.untyped_storage(), "is_host", False):
            return True
        at = tensor.data_ptr()
        ranges = self._host_ranges
        place = bisect_right(ranges, (at, 2**63)) - 1
        return at != 0 and place >= 0 and at < ranges[place][1]

    def _frombuffer(self, *args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = self._of_host(_frombuffer(*args, **kwargs))
        return found

    def _of_host(self, found: Any) -> Any:
        for tensor in tensors_in(found):
            tensor.untyped_storage().is_host = True  # type: ignore[attr-defined]
        return found

    def _addressed(self, tensor: Tensor) -> Tensor:
        """The same memory, wherever its storage's goes, and with a version of its own."""
        storage = tensor.untyped_storage()
        if not getattr(storage, "is_block", False) or not tensor.numel():
            return tensor.data
        if not storage.nbytes():
            raise RuntimeError("a tensor was used whose layer has left the device")
        count = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        memory = (ctypes.c_uint8 * (count * tensor.element_size())).from_address(tensor.data_ptr())
        flat = _frombuffer(memory, dtype=tensor.dtype, count=count)
        return flat.as_strided(tensor.shape, tensor.stride())


class _Operators(TorchDispatchMode):
    """Hands every operator of a thread over."""

    def __init__(self, operator: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._operator = operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._operator(func, args, kwargs or {})


def _each(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_each(one, change) for one in value)
    return value


def _made_in(tensor: Tensor) -> str | None:
    found: str | None = getattr(tensor.untyped_storage(), "made_in", None)
    return found


def _is_let_go(tensor: Tensor) -> bool:
    """Whether nobody else has its memory any more: neither a tensor nor what autograd keeps."""
    storage = tensor.untyped_storage()
    return bool(torch._C._storage_Use_Count(storage._cdata) <= 2)  # the tensor's and this object's


def _poison(tensor: Tensor) -> None:
    """NaN, or -1, before anything has been computed."""
    ctypes.memset(tensor.data_ptr(), _POISON, tensor.untyped_storage().nbytes())
