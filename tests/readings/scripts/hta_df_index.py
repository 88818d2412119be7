"""Figures of the reading hta_df_index: a compiled transformer on two V100, one all-reduce per parameter."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import pairwise

from raw_trace import Event, Interval, category, complete_events, length, load, on_device, union, within

OPS = (
    "c10d::allreduce_", "aten::clone", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad",
    "CompiledFunction", "CompiledFunctionBackward", "torch::autograd::AccumulateGrad",
)  # fmt: skip


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


def kind(event: Event) -> str:
    """Its class by name."""
    name = str(event["name"])
    if "elementwise_kernel" in name:
        return (
            "elementwise fill"
            if "FillFunctor" in name
            else f"elementwise {'up to' if took(event) <= 20_000 else 'above'} 20 us"
        )
    for part in ("nccl", "sgemm", "reduce_kernel", "Memcpy DtoD", "Memset", "epilogue"):
        if part in name:
            return part
    return "other"


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


def main(path: str) -> None:
    """Prints all of them."""
    content = load(path)
    memory = sum(event.get("name") == "[memory]" for event in content["traceEvents"])
    show("device", content["deviceProperties"][0]["name"], content["distributedInfo"], "memory events", memory)
    events = complete_events(path)
    device = on_device(events)
    calls = [event for event in events if category(event) == "cuda_runtime"]
    launches = {event["args"]["correlation"]: event for event in calls if "correlation" in event["args"]}
    marks = [event for event in events if str(event["name"]).startswith("ProfilerStep#")]
    steps, zero, covered = len(marks), events[0]["start"], spans(device)
    show(
        "step, ns",
        sum(map(took, marks)) // steps,
        "ops with shapes",
        sum("Input Dims" in e.get("args", {}) for e in events),
    )
    show("busy", f"{length(covered) / sum(map(took, marks)):.4f}", ms(length(covered) / steps), "a step")
    gaps(device, launches, steps)
    for before, after in pairwise(covered):
        if after[0] - before[1] > 3_000_000:
            names = [
                e["name"] for e in events if e["start"] <= before[1] + 2_000_000 < e["end"] and category(e) == "cpu_op"
            ]
            show("gap", ms(after[0] - before[1]), "at", ms(before[1] - zero), "2 ms later the host is in", names)
    for name in OPS:
        own = [event for event in events if event["name"] == name]
        parts = spans(own)
        idle = sum(length([part]) - length(within(covered, part)) for part in parts)
        show(
            f"host a step in {name}",
            ms(length(parts) / steps),
            "in",
            len(own) // steps,
            "idle in it",
            ms(idle / steps),
        )

    other = spans([event for event in device if "nccl" not in event["name"]])
    sent = [event for event in device if "nccl" in event["name"]]
    open_ns = sum(length([part]) - length(within(other, part)) for part in spans(sent))
    show("communication a step", ms(length(spans(sent)) / steps), "exposed", ms(open_ns / steps))
    best: dict[int, list[int]] = {}
    for mark in marks:
        own = [e for e in sent if mark["start"] <= launches[e["args"]["correlation"]]["start"] < mark["end"]]
        inside = length(within(covered, (mark["start"], mark["end"])))
        show(mark["name"], ms(took(mark)), "busy", ms(inside), "all-reduces", len(own), ms(sum(map(took, own))))
        show("  longest", [ms(time) for time in sorted(map(took, own), reverse=True)[:6]])
        for index, event in enumerate(own):
            best.setdefault(index, []).append(took(event))
    least = [min(times) for times in best.values()]
    show("sum of the least time of each all-reduce of a step", ms(sum(least)))
    small = [time for time in least if time < 100_000]
    show("all-reduces below 100 us", len(small), "least", ms(sum(small)), "median, ns", sorted(least)[len(least) // 2])

    copies = [event for event in device if "DtoD" in event["name"]]
    starts = [event["start"] for event in copies]
    rate: list[tuple[int, float]] = []
    for event in sent:
        copy = copies[bisect_right(starts, event["start"]) - 1]
        if took(event) > 1_000_000 and event["start"] - copy["end"] < 1_000_000:
            size = int(copy["args"]["bytes"])
            rate.append((size, size / took(event)))
    show("long all-reduces: bytes of the copy before, GB/s", sorted({(size, round(gbs)) for size, gbs in rate})[-8:])
    show("bytes copied on the device a step", sum(int(e["args"]["bytes"]) for e in copies) // steps)

    time: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in device:
        time[kind(event)] += took(event)
        count[kind(event)] += 1
    for name, total in time.most_common():
        show(f"device time a step, {name}", ms(total / steps), "in", count[name] // steps)
    kernels = sorted(took(event) for event in device if category(event) == "kernel")
    show("kernels a step", len(kernels) // steps, "median, ns", kernels[len(kernels) // 2])
    sync = [call for call in calls if "Synchronize" in call["name"] or call["name"] == "cudaMemcpy"]
    show("synchronizes", [(call["name"], ms(call["start"] - zero), ms(took(call))) for call in sync])


if __name__ == "__main__":
    main(sys.argv[1])
