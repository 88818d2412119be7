"""Small recordings with the shapes and hazards of real ones, played through by a host and a device of the test.

A loop or a server is played; what each call, kernel and pause takes is drawn, the same at every run. Then come the
hazards: other vendors' words, older formats, clocks that disagree, launches that are missing, rows out of order. What
is true of them brute_force.py computes from the written text.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_job import MS, US, GpuJob
from made_trace import BACKWARD, MAIN, ORIGIN_NS
from trace_files import trace_text

Events = list[dict[str, Any]]

FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
UPDATE, ZERO_GRAD = "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"
NODE = "autograd::engine::evaluate_function: "
KERNELS = ("volta_sgemm_64x64_nt", "void vectorized_elementwise_kernel<4, AddFunctor>", "triton_poi_fused_0")
COLLECTIVE = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 4096, "Out msg nelems": 4096} | {
    "Group size": 8,
    "Process Group Name": "0",
}
MAIN_STREAM, COPY_STREAM, COMM_STREAM, OTHER_STREAM = 7, 14, 20, 28


@dataclass
class PlayedJob(GpuJob):
    """A job whose times are drawn; events are numbered as Kineto does."""

    rng: random.Random = field(default_factory=lambda: random.Random(5))
    thread: int = MAIN
    seq: int = 100
    late_ns: tuple[int, ...] = (0, 0, 1, 900, 1_777, 45_003)
    """By how much an event begins later than it could; the last one has no cause that a trace shows."""

    def launch(
        self, name: str, *, stream: int = MAIN_STREAM, least_ns: int = 2 * US, most_ns: int = 60 * US, **more: Any
    ) -> None:
        """A call that starts an event, or with `streams` a graph that starts one in each of them, in turn."""
        streams, args = more.pop("streams", (stream,)), more
        category = args.pop("category", "kernel")
        call = args.pop("call", {"gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}.get(category))
        begun, took = self.now_ns, self.rng.randrange(2 * US, 9 * US)
        link = self.call(begun, begun + took, name=call or "cudaLaunchKernel", thread=self.thread)
        for number in streams:
            late = self.rng.choice(self.late_ns)
            start = max(self.free_ns.get(number, 0) + late, begun + self.rng.randrange(3 * US, 12 * US))
            end = start + self.rng.randrange(least_ns, most_ns)
            own = {"link": link, "stream": number, "category": category}
            self.on_device(start, end, name=name, **own, **args)
            self.free_ns[number] = end
        self.now_ns += took + self.rng.randrange(1, 3 * US)

    def op_of(self, name: str, *kernels: str, **args: Any) -> None:
        """An operator on the present thread that launches kernels."""
        begun = self.now_ns
        self.now_ns += self.rng.randrange(1 * US, 6 * US)
        for kernel in kernels:
            self.launch(kernel)
        self.host(name, begun, self.now_ns, thread=self.thread, **args)

    def within(self, name: str, work: Callable[[], None], *, category: str = "user_annotation") -> None:
        begun = self.now_ns
        work()
        self.host(name, begun, self.now_ns, category=category, thread=self.thread)

    def fetch(self) -> None:
        """The next batch, made by the host, goes to the device."""
        self.within(FETCH, lambda: self.pause(self.rng.randrange(50 * US, 900 * US)))
        self.within("aten::copy_", self.upload, category="cpu_op")

    def upload(self) -> None:
        name = self.rng.choice(("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"))
        self.launch(name, stream=COPY_STREAM, category="gpu_memcpy", bytes=self.rng.randrange(1 << 20))

    def forward(self, layers: int = 4) -> None:
        for layer in range(layers):
            begun = self.now_ns
            self.seq += 1
            shapes = {"Input Dims": [[8, 32], [32, 16]], "Input type": ["float", "float"]}
            self.op_of("aten::mm", *self.rng.choices(KERNELS, k=2), **{"Sequence number": self.seq}, **shapes)
            tail = {"ph": "s", "id": self.seq, "pid": 100, "tid": MAIN, "ts": _us(begun), "cat": "fwdbwd"}
            self.events.append(tail | {"name": "fwdbwd"})
            if self.stacks:
                self.python(f"nn.Module: Linear_{layer}", begun, self.now_ns)
            self.memory(begun, 4096, allocated=self.seq * 4096, reserved=1 << 20)

    def backward(self, layers: int = 4) -> None:
        """On autograd's thread; every other layer's gradient is reduced beside what follows."""
        self.thread = BACKWARD
        for seq in range(self.seq, self.seq - layers, -1):
            head = {"ph": "f", "id": seq, "pid": 100, "tid": BACKWARD, "ts": _us(self.now_ns + 1), "cat": "fwdbwd"}
            self.events.append(head | {"name": "fwdbwd", "bp": "e"})
            self.op_of(NODE + "MmBackward0", *self.rng.choices(KERNELS, k=3), **{"Sequence number": seq})
            if seq % 2:
                self.reduce()
        self.thread = MAIN

    def reduce(self) -> None:
        """A collective; in one of two its kernel carries its arguments."""
        reported = COLLECTIVE | {"Seq": self.seq} if self.rng.random() < 0.5 else {}
        begun, name = self.now_ns, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.launch(name, stream=COMM_STREAM, least_ns=80 * US, most_ns=400 * US, **reported)
        self.host("record_param_comms", begun, self.now_ns, thread=self.thread, **COLLECTIVE)
        self.host("nccl:all_reduce", begun, self.now_ns, category="user_annotation", thread=self.thread)

    def update(self) -> None:
        for name in (ZERO_GRAD, UPDATE):
            self.within(name, lambda: self.op_of("aten::_foreach_add_", "multi_tensor_apply_kernel"))

    def training_step(self) -> None:
        """Its first call begins with it."""
        begun = self.now_ns
        self.launch("Memset (Device)", category="gpu_memset", bytes=512)
        self.fetch()
        self.forward()
        self.backward()
        self.update()
        if self.rng.random() < 0.5:
            self.launch("Memcpy DtoH (Device -> Pageable)", category="gpu_memcpy", bytes=4)
            self.within("aten::item", self.wait, category="cpu_op")
        self.step_of(begun)

    def train(self, steps: int = 5) -> PlayedJob:
        for _ in range(steps):
            self.training_step()
        return self

    def serve(self, requests: int = 6) -> PlayedJob:
        """Nothing marks steps: a graph of many kernels for each request, and small copies around it."""
        for _ in range(requests):
            begun = self.now_ns
            self.upload()
            streams = [self.rng.choice((MAIN_STREAM, MAIN_STREAM, OTHER_STREAM)) for _ in range(40)]
            self.launch(KERNELS[2], call="cudaGraphLaunch", streams=streams, most_ns=9 * US)
            self.wait()
            self.pause(self.rng.randrange(3 * MS))
            self.python("server.py(7): next_request", begun, self.now_ns)
        return self


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _ns(text: str) -> int:
    whole, _, decimals = text.partition(".")
    return 1000 * int(whole) + int(f"{decimals:0<3}")


def _moved(event: dict[str, Any], by_ns: int, longer_ns: int = 0) -> dict[str, Any]:
    changed = event | {"ts": _us(_ns(event["ts"]) + by_ns)}
    return changed | ({"dur": _us(_ns(event["dur"]) + longer_ns)} if "dur" in event else {})


def _each(events: Events, change: Callable[[dict[str, Any]], dict[str, Any]], *categories: str) -> Events:
    return [change(event) if event["cat"] in categories else event for event in events]


ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
RNG = random.Random


def with_everything_else(events: Events) -> Events:
    """What the profiler writes besides: arrows, the device's copies of annotations, syncs, its own costs, labels."""
    extra: Events = []
    for event in events:
        at = {key: event[key] for key in ("pid", "tid", "ts")}
        if "correlation" in event.get("args", {}):
            arrow = {"ph": "s"} if event["cat"] == "cuda_runtime" else {"ph": "f", "bp": "e"}
            extra.append(at | arrow | {"cat": "ac2g", "name": "ac2g", "id": event["args"]["correlation"]})
        if event["name"] == "cudaStreamSynchronize":
            reported = {"stream": 7, "device": 0, "correlation": event["args"]["correlation"]}
            extra.append(event | {"cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7, "args": reported})
        if event["name"] == UPDATE:
            extra.append(event | {"cat": "gpu_user_annotation", "pid": 0, "tid": 7})
            extra.append(event | {"cat": "overhead", "name": "Buffer Flush", "pid": -1, "tid": 0})
    span = {"ph": "X", "cat": "Trace", "pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)"}
    label = {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "ts": "0.000", "args": {"name": "main"}}
    moment = {"ph": "i", "s": "g", "pid": "", "tid": "", "name": "Record Window End", "ts": events[0]["ts"]}
    return [*events, *extra, span | {"ts": events[0]["ts"], "dur": "9.000", "args": {"Op count": 0}}, label, moment]


def in_any_order(events: Events) -> Events:
    return RNG(1).sample(events, len(events))


def with_launches_missing(events: Events) -> Events:
    """The first calls were made before the recording began, some were lost, and some events name no call at all."""
    rng = RNG(2)
    kept = [event for event in events if event["cat"] != "cuda_runtime" or rng.random() > 0.2]
    early = [number for number, event in enumerate(kept) if event["cat"] == "cuda_runtime"][:9]
    kept = [event for number, event in enumerate(kept) if number not in early]

    def unnamed(event: dict[str, Any]) -> dict[str, Any]:
        if rng.random() > 0.1:
            return event
        return event | {"args": {key: value for key, value in event["args"].items() if key != "correlation"}}

    return _each(kept, unnamed, *ON_DEVICE)


def with_numbers_used_again(events: Events) -> Events:
    """Correlations start over in the middle of the recording."""

    def again(event: dict[str, Any]) -> dict[str, Any]:
        args = event["args"]
        number = {"correlation": (args["correlation"] - 1) % 60 + 1} if "correlation" in args else {}
        return event | {"args": args | number}

    return _each(events, again, "cuda_runtime", *ON_DEVICE)


def with_a_device_clock_behind(events: Events) -> Events:
    """The device seems to begin before it is asked, and an event to lie partly or wholly within one of its stream."""
    rng = RNG(3)
    return _each(events, lambda event: _moved(event, -9_500, rng.choice((0, 0, 2_345, 90_001))), *ON_DEVICE)


def in_whole_microseconds(events: Events) -> Events:
    """Times as numbers without decimals: many events at one moment, and some of no duration."""
    times = ("ts", "dur")
    return [event | {key: str(_ns(event[key]) // 1000) for key in times if key in event} for event in events]


def since_the_epoch(events: Events) -> Events:
    """Sixteen digits before the point, more than a float holds."""
    return [_moved(event, ORIGIN_NS) for event in events]


HIP = {"cudaLaunchKernel": "hipExtModuleLaunchKernel", "cudaMemcpyAsync": "hipMemcpyWithStream"} | {
    KERNELS[0]: "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64",
    KERNELS[1]: "hipblaslt_elementwise",
}


def on_amd(events: Events) -> Events:
    """ROCm's names, streams counted from 0, the third of eight devices, copies without their sizes."""

    def renamed(event: dict[str, Any]) -> dict[str, Any]:
        name = event["name"]
        return event | {"name": HIP.get(name, name.replace("cuda", "hip"))}

    def placed(event: dict[str, Any]) -> dict[str, Any]:
        args = {key: value for key, value in event["args"].items() if key != "bytes"}
        stream = args["stream"] // 7 - 1
        return renamed(event) | {"pid": 2, "tid": stream, "args": args | {"device": 2, "stream": stream}}

    return _each(_each(events, renamed, "cuda_runtime"), placed, *ON_DEVICE)


def on_mtia(events: Events) -> Events:
    """Another accelerator's categories; movement of memory is a kernel like any other."""
    category = {"cuda_runtime": "mtia_runtime"} | dict.fromkeys(ON_DEVICE, "mtia_ccp_events")

    def renamed(event: dict[str, Any]) -> dict[str, Any]:
        name = "dma_request" if event["cat"] == "gpu_memcpy" else event["name"]
        return event | {"cat": category[event["cat"]], "name": name}

    return _each(events, renamed, "cuda_runtime", *ON_DEVICE)


def by_symmetric_memory(events: Events) -> Events:
    """Collectives that no name of NCCL and no argument tells."""

    def renamed(event: dict[str, Any]) -> dict[str, Any]:
        if "nccl" not in event["name"]:
            return event
        own = {key: event["args"][key] for key in ("device", "stream", "correlation")}
        return event | {"name": "void multimem_all_reduce_kernel<c10::BFloat16, 16>", "args": own}

    return _each(events, renamed, "kernel")


OLD = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"} | {
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
OLD_KEYS = {"External id": "external id", "Input Dims": "Input dims"}


def in_oldest_words(events: Events) -> Events:
    """As PyTorch 1.8 wrote them: one category for the host, thread numbers as text, arrows named `async`."""
    written: Events = []
    for event in events:
        category = event.get("cat")
        if category not in OLD:
            continue
        args = {OLD_KEYS.get(key, key): value for key, value in event["args"].items() if key != "Sequence number"}
        written.append(event | {"cat": OLD[category], "tid": str(event["tid"]), "args": args})
        if "correlation" in args:
            at = {key: event[key] for key in ("pid", "tid", "ts")} | {"cat": "async", "name": "launch"}
            arrow = {"ph": "s"} if category == "cuda_runtime" else {"ph": "f", "bp": "e"}
            written.append(at | arrow | {"id": args["correlation"]})
    label = {"ph": "M", "name": "thread_name", "pid": 100, "tid": "100", "args": {"name": "thread 0 (python)"}}
    return [*written, label]


def _trained(**of_job: Any) -> Events:
    return PlayedJob(**of_job).train().events


def _text(events: Events, *, base: bool = True, layout: str = "kineto", **after: Any) -> bytes:
    before = {"deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-32GB", "numSms": 80}]}
    clock = {"baseTimeNanoseconds": ORIGIN_NS} if base else {}
    return trace_text(events, before=before | clock, after=after, layout=layout)


HAZARDS: dict[str, Callable[[], bytes]] = {
    "everything": lambda: _text(with_everything_else(_trained()), distributedInfo={"rank": 3, "world_size": 8}),
    "any order": lambda: _text(in_any_order(with_everything_else(_trained())), layout="tight"),
    "launches missing": lambda: _text(with_launches_missing(_trained(stacks=False))),
    "numbers used again": lambda: _text(with_numbers_used_again(_trained())),
    "device clock behind": lambda: _text(with_a_device_clock_behind(_trained())),
    "whole microseconds": lambda: _text(in_whole_microseconds(_trained()), base=False),
    "since the epoch": lambda: _text(since_the_epoch(_trained()), base=False, layout="pretty"),
    "one step": lambda: _text(with_launches_missing(PlayedJob().train(1).events)),
    "graphs served": lambda: _text(PlayedJob().serve().events),
    "graphs served, launches missing": lambda: _text(with_launches_missing(PlayedJob().serve(30).events)),
    "AMD": lambda: _text(on_amd(_trained())),
    "MTIA": lambda: _text(on_mtia(_trained())),
    "symmetric memory": lambda: _text(by_symmetric_memory(_trained())),
    "oldest words": lambda: _text(in_oldest_words(in_whole_microseconds(_trained(stacks=False))), base=False),
    "all at once": lambda: _text(
        in_any_order(with_numbers_used_again(with_launches_missing(with_a_device_clock_behind(_trained()))))
    ),
}
"""Name → the text of a trace."""
