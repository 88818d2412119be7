"""Figures of the reading hta_sampled: two training steps of rank 0 of 128, of which most events were sampled out."""

from __future__ import annotations

import sys
from collections import Counter

from raw_trace import Event, category, complete_events, length, load, on_device, union, within

CLASSES = (
    "nccl",
    "align1",
    "ampere_sgemm",
    "gemm",
    "embedding",
    "CatArray",
    "elementwise_kernel",
    "multi_tensor",
    "Memcpy",
)
NAMES = (
    "Optimizer.step#Shampoo.step",
    "aten::_foreach_mul_",
    "Optimizer.step#EMAOptimizer.step",
    "## data_load ##",
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


def kept(label: str, numbers: list[int]) -> None:
    """How many of a counter's numbers are there."""
    span = max(numbers) - min(numbers) + 1
    show(label, len(numbers), "of numbers", min(numbers), "to", max(numbers), f"= {len(numbers) / span:.4f}")


def main(path: str) -> None:
    """Prints all of them."""
    content = load(path)
    show("distributed", content["distributedInfo"], "device properties", "deviceProperties" in content)
    events = complete_events(path)
    device = on_device(events)
    calls = [event for event in events if category(event) == "cuda_runtime"]
    ops = [event for event in events if category(event) == "cpu_op"]
    kept("runtime calls by correlation", [int(call["args"]["correlation"]) for call in calls])
    kept("operators by index", [int(op["args"]["Ev Idx"]) for op in ops])
    launches = {call["args"]["correlation"]: call for call in calls}
    show("calls by name", Counter(call["name"] for call in calls))
    show("device events", len(device), "with launch", sum(e["args"]["correlation"] in launches for e in device))
    small = sum(
        not any(c["start"] >= o["start"] and c["end"] <= o["end"] and c["tid"] == o["tid"] for o in ops) for c in calls
    )
    show("launches without the operator that made them", small)
    marks = [event for event in events if str(event["name"]).startswith("ProfilerStep#")]
    steps, zero, covered = len(marks), events[0]["start"], union((event["start"], event["end"]) for event in device)
    show("step, ns", sum(map(took, marks)) // steps)
    for mark in marks:
        own = [
            event for event in device if mark["start"] <= launches[event["args"]["correlation"]]["start"] < mark["end"]
        ]
        inside = length(within(covered, (mark["start"], mark["end"])))
        lag = sorted(event["start"] - launches[event["args"]["correlation"]]["end"] for event in own)
        show(mark["name"], ms(took(mark)), "recorded busy", ms(inside), "device events", len(own))
        show("  behind launch: median", ms(lag[len(lag) // 2]), "most", ms(lag[-1]))
    for name in ("## forward ##", "## backward ##", "## optimizer ##", *NAMES):
        own = [event for event in events if event["name"] == name]
        idle = sum(took(e) - length(within(covered, (e["start"], e["end"]))) for e in own)
        show(f"host a step in {name}", ms(sum(map(took, own)) / steps), "no record on the device", ms(idle / steps))

    other = union((event["start"], event["end"]) for event in device if "nccl" not in event["name"])
    sent = [event for event in device if "nccl" in event["name"]]
    for event in sent:
        alone = took(event) - length(within(other, (event["start"], event["end"])))
        show(
            "collective",
            event["name"][11:19],
            "at",
            ms(event["start"] - zero),
            ms(took(event)),
            "alone in the file",
            ms(alone),
        )
    parts = union((event["start"], event["end"]) for event in sent)
    open_ns = length(parts) - sum(length(within(other, part)) for part in parts)
    show("communication a step", ms(length(parts) / steps), "nothing recorded beside it", ms(open_ns / steps))
    time: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in device:
        name = next((part for part in CLASSES if part in event["name"]), "other")
        time[name] += took(event)
        count[name] += 1
    for name, total in time.most_common():
        show(f"recorded device time a step, {name}", ms(total / steps), "in", count[name] // steps)


if __name__ == "__main__":
    main(sys.argv[1])
