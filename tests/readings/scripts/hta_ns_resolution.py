"""Figures of the reading hta_ns_resolution: a ResNet on one V100 under DistributedDataParallel with one rank."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise

from raw_trace import Event, category, complete_events, length, load, on_device, union

FP32 = ("sgemm", "scudnn", "winograd", "dgrad_engine", "wgrad_alg0_engine", "conv2d_grouped")
SMS = 80


def show(label: str, *values: object) -> None:
    """One labelled line."""
    sys.stdout.write(f"{label}: {' '.join(map(str, values))}\n")


def ms(time_ns: float) -> str:
    """Nanoseconds, shown in milliseconds."""
    return f"{time_ns / 1e6:.3f} ms"


def took(event: Event) -> int:
    """Its length in ns."""
    return int(event["end"] - event["start"])


def busy(events: list[Event]) -> int:
    """Time in which one of them runs."""
    return length(union((event["start"], event["end"]) for event in events))


def wrapper_copy(event: Event, op: str) -> bool:
    """A gradient into the bucket (times 1 / world), or a gradient or a buffer out of it."""
    return op == "aten::copy_" or (op == "aten::mul" and took(event) < 50_000)


def main(path: str) -> None:
    """Prints all of them."""
    content = load(path)
    show("device", content["deviceProperties"][0]["name"], content["distributedInfo"])
    events = complete_events(path)
    device = on_device(events)
    kernels = [event for event in device if category(event) == "kernel"]
    calls = [event for event in events if category(event) == "cuda_runtime"]
    launches = {event["args"]["correlation"]: event for event in calls if "correlation" in event["args"]}
    ops = {event["args"]["External id"]: event for event in events if category(event) == "cpu_op"}
    marks = [event for event in events if str(event["name"]).startswith("ProfilerStep#")]
    steps, zero = len(marks), events[0]["start"]
    show("operators with shapes", sum("Input Dims" in event["args"] for event in ops.values()))

    lengths = []
    for mark in marks:
        pairs = [(event, launches[event["args"]["correlation"]]) for event in device]
        pairs = [(event, call) for event, call in pairs if mark["start"] <= call["start"] < mark["end"]]
        own = [event for event, _ in pairs]
        lengths.append(max(event["end"] for event in own) - own[0]["start"])
        lag = sorted(event["start"] - call["end"] for event, call in pairs)
        show(mark["name"], "host", ms(took(mark)), "device", ms(lengths[-1]), "busy", ms(busy(own)), "events", len(own))
        show("  kernel behind its launch", "median", ms(lag[len(lag) // 2]), "most", ms(lag[-1]))
    first, last = device[0]["start"], max(event["end"] for event in device)
    show("mean device step, ns", sum(lengths) // steps)
    show("last mark ends", ms(marks[-1]["end"] - zero), "device ends", ms(last - zero))
    show("device span", ms(last - first), "busy", ms(busy(device)), f"{busy(device) / (last - first):.4f}")
    covered = union((event["start"], event["end"]) for event in device)
    gaps = {before[1]: after[0] - before[1] for before, after in pairwise(covered)}
    largest = sorted(gaps.items(), key=lambda gap: -gap[1])[:6]
    show("idle a step", ms(sum(gaps.values()) / steps), [f"{ms(gap)} at {ms(at - zero)}" for at, gap in largest])

    runtime: Counter[str] = Counter()
    for call in calls:
        runtime[call["name"]] += took(call)
    show("runtime calls a step", {name: ms(time / steps) for name, time in runtime.most_common(4)})
    for call in calls:
        if "Synchronize" in call["name"]:
            show("synchronize", call["name"], ms(call["start"] - zero), ms(call["end"] - zero))

    per_op: Counter[str] = Counter()
    count: Counter[str] = Counter()
    named = [(event, str(ops.get(event["args"].get("External id"), {"name": "none"})["name"])) for event in device]
    for event, name in named:
        tag = " (below 5 us: batch counters)" if name == "aten::add_" and took(event) < 5_000 else ""
        per_op[name + tag] += took(event)
        count[name + tag] += 1
    for name, time in per_op.most_common(16):
        show(f"device time a step of {name}", ms(time / steps), "in", count[name] // steps)
    fp32 = sum(took(event) for event in kernels if any(part in event["name"] for part in FP32))
    show("float32 convolution and product kernels a step", ms(fp32 / steps), f"{fp32 / busy(device):.3f} of busy")
    grids = [(event, event["args"]["grid"]) for event in kernels]
    empty = [(took(event), 1 - x * y * z / SMS) for event, (x, y, z) in grids if x * y * z <= SMS // 2]
    show("empty multiprocessors a step", ms(sum(time * part for time, part in empty if time >= 10_000) / steps))
    fills = [took(event) for event in device if category(event) == "gpu_memset" or "FillFunctor" in event["name"]]
    show("fills a step", ms(sum(fills) / steps), "communication kernels", sum("nccl" in e["name"] for e in kernels))
    show("layout kernels a step", ms(sum(took(event) for event in kernels if "Nhwc" in event["name"]) / steps))
    show("median kernel, ns", sorted(map(took, kernels))[len(kernels) // 2])
    copies = [event for event in device if category(event) == "gpu_memcpy"]
    moved = sum(int(event["args"]["bytes"]) for event in copies) // steps
    show("copies a step", len(copies) // steps, "bytes", moved, {event["name"] for event in copies})
    wrapper = [event for event, name in named if wrapper_copy(event, name)]
    after = sum(gaps.get(event["end"], 0) for event in wrapper)
    show("copies of the wrapper a step", len(wrapper) // steps, ms(busy(wrapper) / steps), "gaps", ms(after / steps))


if __name__ == "__main__":
    main(sys.argv[1])
