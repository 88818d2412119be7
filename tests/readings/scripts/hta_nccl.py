"""Figures of the reading hta_nccl: ResNet-50 under DistributedDataParallel, rank 0 of 2, A100 with TF32."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from itertools import pairwise

from raw_trace import Event, Interval, category, complete_events, length, load, on_device, union, within

RANGES = ("## forward ##", "DistributedDataParallel.forward", "## backward ##", "Optimizer.step#SGD.step",
          "aten::flatten_dense_tensors", "aten::unflatten_dense_tensors",
          "torch.distributed.ddp.reducer::copy_bucket_to_grad")  # fmt: skip
CLASSES = (
    "nccl",
    "nchwToNhwc",
    "nhwcToNchw",
    "bn_",
    "s1688",
    "tf32",
    "sgemm",
    "scudnn",
    "elementwise_kernel",
    "DtoD",
    "multi_tensor",
)


def show(label: str, *values: object) -> None:
    """One labelled line."""
    sys.stdout.write(f"{label}: {' '.join(map(str, values))}\n")


def ms(time_ns: float) -> str:
    """Nanoseconds, shown in milliseconds."""
    return f"{time_ns / 1e6:.3f} ms"


def took(event: Event) -> int:
    """Its length in ns."""
    return int(event["end"] - event["start"])


def spans(events: list[Event]) -> list[Interval]:
    """When one of them runs."""
    return union((event["start"], event["end"]) for event in events)


def gaps(device: list[Event], launches: dict[int, Event], steps: int) -> None:
    """Gaps by what the host did about the kernel that ends them."""
    starts = [event["start"] for event in device]
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for before, after in pairwise(spans(device)):
        first = device[bisect_left(starts, after[0])]
        late = launches[first["args"]["correlation"]]["start"] >= before[1]
        name = f"launched {'late' if late else 'before'}, {'above' if after[0] - before[1] > 10**6 else 'up to'} 1 ms"
        total[name] += after[0] - before[1]
        count[name] += 1
    for name, time in total.most_common():
        show(f"idle a step, {name}", ms(time / steps), "in", count[name] // steps)


def collectives(sent: list[Event], steps: int) -> None:
    """Each kind and size with its rates; two ranks: an all-reduce's bus bandwidth is bytes / time."""
    rows: dict[tuple[str, int], list[int]] = {}
    for event in sent:
        size = int(event["args"]["In msg nelems"]) * (8 if event["args"]["dtype"] == "Long" else 4)
        rows.setdefault((event["args"]["Collective name"], size), []).append(took(event))
    for (name, size), times in rows.items():
        rates = [round(size / time, 1) for time in times]
        show(f"{name} of {size} bytes", [ms(time) for time in times], "bus GB/s", rates)
    best = sum(min(times) for times in rows.values())
    show("best call of each a step", ms(best), "bytes a step", sum(size for _, size in rows), "steps", steps)


def main(path: str) -> None:
    """Prints all of them."""
    content = load(path)
    world = {key: content["distributedInfo"][key] for key in ("rank", "world_size", "pg_config")}
    show("device", content["deviceProperties"][0]["name"], world)
    events = complete_events(path)
    device = on_device(events)
    calls = [event for event in events if category(event) == "cuda_runtime"]
    launches = {event["args"]["correlation"]: event for event in calls if "correlation" in event["args"]}
    marks = [event for event in events if str(event["name"]).startswith("ProfilerStep#")]
    steps, zero, covered = len(marks), events[0]["start"], spans(device)
    show("step, ns", sum(map(took, marks)) // steps)
    for mark in marks:
        inside = length(within(covered, (mark["start"], mark["end"])))
        show(mark["name"], ms(took(mark)), "busy", ms(inside))
    show("busy", f"{length(covered) / sum(map(took, marks)):.4f}", ms(length(covered) / steps), "a step")
    gaps(device, launches, steps)
    ops = [event for event in events if category(event) == "cpu_op"]
    kernel = sum(took(call) for call in calls if "Launch" in call["name"])
    show("operators a step", len(ops) // steps, "ns of a step for each", sum(map(took, marks)) // len(ops))
    empty = [took(op) for op in ops if op["name"] == "aten::empty"]
    show("aten::empty", len(empty), "ns each", sum(empty) // len(empty))
    short = [took(e) for e in device if "elementwise_kernel" in e["name"] and took(e) <= 20_000]
    show("elementwise kernels of at most 20 us a step", len(short) // steps, ms(sum(short) / steps))
    show(
        "launch calls a step",
        ms(kernel / steps),
        "operators with shapes",
        sum("Input Dims" in op["args"] for op in ops),
    )
    for name in RANGES:
        own = [event for event in events if event["name"] == name and not category(event).startswith("gpu")]
        parts = spans(own)
        idle_ns = sum(length([part]) - length(within(covered, part)) for part in parts)
        show(
            f"host a step in {name}",
            ms(length(parts) / steps),
            "in",
            len(own) / steps,
            "idle in it",
            ms(idle_ns / steps),
        )
    first = [
        min(e["start"] for e in ops if e["name"] == "aten::conv2d" and e["start"] > mark["start"]) for mark in marks
    ]
    idle = [
        at - mark["start"] - length(within(covered, (mark["start"], at))) for at, mark in zip(first, marks, strict=True)
    ]
    show("idle from the mark to the first convolution", [ms(time) for time in idle])
    for before, after in pairwise(covered):
        if after[0] - before[1] > 4_000_000 and before[1] < marks[1]["end"]:
            at = (before[1] + after[0]) // 2
            names = [op["name"] for op in ops if op["start"] <= at < op["end"]]
            show("gap", ms(after[0] - before[1]), "at", ms(before[1] - zero), "host in its middle", names)

    other = spans([event for event in device if "nccl" not in event["name"]])
    sent = [event for event in device if "nccl" in event["name"]]
    open_ns = sum(length([part]) - length(within(other, part)) for part in spans(sent))
    show("communication a step", ms(length(spans(sent)) / steps), "exposed", ms(open_ns / steps))
    collectives(sent, steps)

    time: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in device:
        name = next((part for part in CLASSES if part in event["name"]), "other")
        time[name] += took(event)
        count[name] += 1
    for name, total in time.most_common():
        show(f"device time a step, {name}", ms(total / steps), "in", count[name] // steps)
    kernels = sorted(took(event) for event in device if category(event) == "kernel")
    show("kernels a step", len(kernels) // steps, "median, ns", kernels[len(kernels) // 2])
    sync = [call for call in calls if "Synchronize" in call["name"]]
    show("synchronizes", len(sync), ms(sum(map(took, sync)) / steps), "a step; last at", ms(sync[-1]["start"] - zero))


if __name__ == "__main__":
    main(sys.argv[1])
