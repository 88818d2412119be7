"""Figures of the reading hta_alexnet: a benchmark of one forward pass, recorded from the start of CUDA on."""

from __future__ import annotations

import sys
from collections import Counter

from raw_trace import Event, Interval, category, complete_events, length, load, on_device, union, within


def show(label: str, *values: object) -> None:
    """One labelled line."""
    sys.stdout.write(f"{label}: {' '.join(map(str, values))}\n")


def ms(time_ns: float) -> str:
    """Nanoseconds, shown in milliseconds."""
    return f"{time_ns / 1e6:.3f} ms"


def took(event: Event) -> int:
    """Its length in ns."""
    return int(event["end"] - event["start"])


def part(name: str, window: Interval, calls: list[Event], device: list[Event]) -> None:
    """What runs in a window."""
    covered = within(union((event["start"], event["end"]) for event in device), window)
    show(f"{name}: length", ms(window[1] - window[0]), "GPU busy", ms(length(covered)))
    inside = [call for call in calls if window[0] <= call["start"] < window[1]]
    time: Counter[str] = Counter()
    count: Counter[str] = Counter(call["name"] for call in inside)
    for call in inside:
        time[call["name"]] += took(call)
    for call_name, total in time.most_common(6):
        show(f"  {call_name}", count[call_name], ms(total))


def main(path: str) -> None:
    """Prints all of them."""
    content = load(path)
    show("device", content["deviceProperties"][0]["name"], content["distributedInfo"])
    events = complete_events(path)
    device = on_device(events)
    calls = [event for event in events if category(event) == "cuda_runtime"]
    zero, end = events[0]["start"], max(event["end"] for event in events)
    show("recording, ns", end - zero, "host events from", ms(events[1]["start"] - zero))
    show("steps marked", sum(str(event["name"]).startswith("ProfilerStep") for event in events))
    for event in events:
        if category(event) == "user_annotation":
            part(f"{event['name']} at {ms(event['start'] - zero)}", (event["start"], event["end"]), calls, device)
    part("whole recording", (zero, end), calls, device)
    slow = [call for call in calls if took(call) > 100_000_000]
    for call in slow:
        over = [
            e["name"]
            for e in events
            if category(e) == "cpu_op" and e["start"] <= call["start"] < call["end"] <= e["end"]
        ]
        show("call above 0.1 s", call["name"], ms(took(call)), "at", ms(call["start"] - zero), "in", over[:1])
    show(
        "sum of calls above 0.1 s",
        ms(sum(map(took, slow))),
        f"{sum(map(took, slow)) / (end - zero):.4f} of the recording",
    )
    copies = [event for event in device if "Memcpy" in event["name"]]
    size = sum(int(event["args"]["bytes"]) for event in copies)
    names = {event["name"] for event in copies}
    show(
        "copies",
        len(copies),
        names,
        size,
        "bytes",
        ms(sum(map(took, copies))),
        f"{size / sum(map(took, copies)):.2f} GB/s",
    )
    kernels: Counter[str] = Counter()
    forward = [event for event in events if "measure|forward" in event["name"]][-1]
    for event in device:
        if forward["start"] <= event["start"] < forward["end"] and category(event) == "kernel":
            kernels[event["name"][:70]] += took(event)
    show("kernels of the measured forward pass", ms(sum(kernels.values())))
    for name, total in kernels.most_common(6):
        show(f"  {name}", ms(total))
    show("backward operators", sum("Backward" in event["name"] for event in events))


if __name__ == "__main__":
    main(sys.argv[1])
