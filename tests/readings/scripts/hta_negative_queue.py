"""Figures of the reading hta_negative_queue: a recommendation model on A100s with CUDA graphs, rank 0 of 16."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from itertools import pairwise

from raw_trace import Event, Interval, category, complete_events, length, load, on_device, union, within

CLASSES = (
    "nccl",
    "align1",
    "multi_tensor",
    "DtoD",
    "HtoD",
    "DtoH",
    "elementwise_kernel",
    "triton",
    "gemm",
    "reduce_kernel",
)
METRICS = "## RecMetricModule:update ##"


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


def classes(events: list[Event], steps: int) -> None:
    """Device time by class."""
    time: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in events:
        name = next((part for part in CLASSES if part in event["name"]), "other")
        time[name] += took(event)
        count[name] += 1
    for name, total in time.most_common():
        show(f"  device time a step, {name}", ms(total / steps), "in", count[name] // steps)


def main(path: str) -> None:
    """Prints all of them."""
    content = load(path)
    show("device", content["deviceProperties"][0]["name"], content["distributedInfo"])
    events = complete_events(path)
    device = on_device(events)
    calls = [event for event in events if category(event) == "cuda_runtime"]
    launches = {event["args"]["correlation"]: event for event in calls if "correlation" in event["args"]}
    marks = [event for event in events if str(event["name"]).startswith("ProfilerStep#")]
    zero = events[0]["start"]
    pairs = [(event, launches[e]) for event in device if (e := event["args"]["correlation"]) in launches]
    show("device events", len(device), "without launch", len(device) - len(pairs))
    for mark in marks:
        lag = sorted(e["start"] - call["end"] for e, call in pairs if mark["start"] <= call["start"] < mark["end"])
        show(mark["name"], "host", ms(took(mark)), "behind launch: median", ms(lag[len(lag) // 2]), "most", ms(lag[-1]))
    long = [event for event in device if "nccl" in event["name"] and took(event) > 15_000_000]
    show("longest collective of each step", [ms(took(e)) for e in long], "at", [ms(e["start"] - zero) for e in long])
    start, end, steps = long[0]["end"], long[-1]["end"], len(long) - 1
    show("step on the device, ns, from end to end of it", (end - start) // steps, "steps", steps)
    show("host steps, mean, ns", sum(map(took, marks)) // len(marks))

    inner = [event for event in device if start <= event["start"] < end]
    covered = within(spans(device), (start, end))
    show("recorded busy", f"{length(covered) / (end - start):.4f}", ms(length(covered) / steps), "a step")
    graphs: dict[int, list[Event]] = {}
    for event, call in pairs:
        if call["name"] == "cudaGraphLaunch":
            graphs.setdefault(event["args"]["correlation"], []).append(event)
    total = sum(call["name"] == "cudaGraphLaunch" for call in calls)
    show("graph launches", total, "with records", len(graphs), "records", sum(map(len, graphs.values())))
    inside = union((own[0]["start"], max(event["end"] for event in own)) for own in graphs.values())
    inside = within(inside, (start, end))
    hidden = length(inside) - sum(length(within(covered, part)) for part in inside)
    show(
        "between two records of one graph launch a step",
        ms(length(inside) / steps),
        "without record",
        ms(hidden / steps),
    )
    show("busy if a launched graph runs through", f"{(length(covered) + hidden) / (end - start):.4f}")

    starts = [event["start"] for event in device]
    idle: Counter[str] = Counter()
    for before, after in pairwise(covered):
        cause = launches.get(device[bisect_left(starts, after[0])]["args"]["correlation"])
        held = any(part[0] <= before[1] and after[0] <= part[1] for part in inside)
        late = "no launch" if cause is None else "launched late" if cause["start"] >= before[1] else "launched before"
        idle[f"{late}, {'inside' if held else 'outside'} a graph launch"] += after[0] - before[1]
    for name, time in idle.most_common():
        show(f"no record a step, {name}", ms(time / steps))

    other = spans([event for event in inner if "nccl" not in event["name"]])
    sent = [event for event in inner if "nccl" in event["name"]]
    open_ns = sum(length([part]) - length(within(other, part)) for part in spans(sent))
    show("communication a step", ms(length(spans(sent)) / steps), "nothing recorded beside it", ms(open_ns / steps))
    args = next(event["args"] for event in events if event["name"] == "record_param_comms")
    show("arguments of a collective", args)
    classes(inner, steps)
    kernels = sorted(took(event) for event in inner if category(event) == "kernel")
    show("recorded kernels a step", len(kernels) // steps, "median, ns", kernels[len(kernels) // 2])

    for name in ("torch::autograd::AccumulateGrad", "CompiledFunction", "CompiledFunctionBackward"):
        own = [event for event in events if event["name"] == name]
        copies = [
            event
            for event, call in pairs
            if "DtoD" in event["name"] and call["name"] == "cudaMemcpyAsync"
            if any(o["tid"] == call["tid"] and o["start"] <= call["start"] < o["end"] for o in own)
        ]
        show(
            f"copies on the device in {name} a step", len(copies) // len(marks), ms(sum(map(took, copies)) / len(marks))
        )

    ranges = [e for e in events if e["name"] == METRICS]
    metrics = [e for e, call in pairs if any(r["start"] <= call["start"] < r["end"] for r in ranges)]
    show("metrics a step: host", ms(sum(map(took, ranges)) / len(marks)), "device events", len(metrics) // len(marks))
    near = union((event["start"], event["end"] + 10_000) for event in metrics if "nccl" not in event["name"])
    show(
        "  their device time",
        ms(length(spans(metrics)) / len(marks)),
        "with gaps up to 10 us",
        ms(length(near) / len(marks)),
    )
    classes(metrics, len(marks))
    for call in calls:
        if took(call) > 20_000_000:
            part = (call["start"], call["end"])
            names = [
                e["name"] for e in events if e["tid"] == call["tid"] and e["start"] <= part[0] < part[1] <= e["end"]
            ]
            show(
                "blocked",
                call["name"],
                ms(took(call)),
                "without record",
                ms(took(call) - length(within(spans(device), part))),
            )
            show("  in", names[1:3])


if __name__ == "__main__":
    main(sys.argv[1])
