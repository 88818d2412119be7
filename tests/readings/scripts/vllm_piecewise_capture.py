"""Figures of the reading `vllm_piecewise_capture`: vLLM captures the graphs between attention for 8192 rows, MI300X."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from itertools import pairwise

from raw_trace import Event, category, complete_events, length, on_device, union

CALLS = (
    "hipStreamBeginCapture",
    "hipStreamEndCapture",
    "hipGraphInstantiateWithFlags",
    "hipGraphLaunch",
    "hipGraphDestroy",
    "hipMalloc",
    "hipFree",
    "hipDeviceSynchronize",
    "hipEventSynchronize",
    "hipMemcpyAsync",
)
SHAPED = ("aten::addmm", "vllm::moe_forward", "triton_poi_fused__to_copy_1", "aten::unbind")
FRAMES = ("empty_cache", "cuda/__init__.py(1073): synchronize", "gc.collect", "triton/runtime/jit.py(574): run")


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def took(events: list[Event]) -> list[int]:
    """Their lengths, ns."""
    return [event["end"] - event["start"] for event in events]


def pauses(events: list[Event]) -> tuple[str, int, float, float]:
    """The Python frame with the most time between its calls: name, sum, mean of the first and last quarter, ns."""
    inside: dict[int, list[Event]] = defaultdict(list)
    stack: list[Event] = []
    for event in events:
        while stack and stack[-1]["end"] <= event["start"]:
            stack.pop()
        if stack:
            inside[id(stack[-1])].append(event)
        stack.append(event)
    between = {
        key: [after["start"] - before["end"] for before, after in pairwise(calls)]
        for key, calls in inside.items()
        if len(calls) > 30
    }
    key, waits = max(between.items(), key=lambda row: sum(row[1]))
    quarter = len(waits) // 4
    name = next(str(event["name"]) for event in events if id(event) == key)
    return name, sum(waits), sum(waits[:quarter]) / quarter, sum(waits[-quarter:]) / quarter


def main() -> None:
    """Print them."""
    events = complete_events(sys.argv[1])
    first, last = events[0]["start"], max(event["end"] for event in events)
    say(f"recording {last - first} ns; events {dict(Counter(category(event) for event in events))}")
    for event in events:
        if category(event) == "user_annotation" and "capture" in event["name"]:
            say(f"range {event['name']}: {event['end'] - event['start']} ns")
    device = on_device(events)
    busy = union((event["start"], event["end"]) for event in device)
    say(f"device events {len(device)}, busy {length(busy)} ns, from {busy[0][0] - first} to {busy[-1][1] - first} ns")
    calls = [event for event in events if category(event) == "cuda_runtime"]
    launches = [event for event in calls if "Launch" in event["name"] and "Graph" not in event["name"]]
    ran = {event["args"].get("correlation") for event in device}
    captured = [event for event in launches if event["args"]["correlation"] not in ran]
    say(f"launches {len(launches)}, of them without an event on the device (captured) {len(captured)}")
    say(f"first to last captured launch {captured[-1]['end'] - captured[0]['start']} ns")
    say(f"driver's time in captured launches {sum(took(captured))} ns")
    for name in CALLS:
        those = [event for event in calls if event["name"] == name]
        at = [event["start"] - first for event in those[:3]]
        say(f"{name}: {len(those)} calls, {sum(took(those))} ns, the longest {max(took(those), default=0)}, at {at}")
    main_thread = max(Counter(event["tid"] for event in events).items(), key=lambda row: row[1])[0]
    python = [event for event in events if category(event) == "python_function" and event["tid"] == main_thread]
    for part in FRAMES:
        those = [event for event in python if part in event["name"]]
        say(f"frames {part}: {len(those)}, {sum(took(those))} ns")
    say(f"Python calls on the main thread {len(python)}; pauses inside one frame: {pauses(python)}")
    wait = max(
        (event for event in calls if "Synchronize" in event["name"]), key=lambda event: event["end"] - event["start"]
    )
    before = [event for event in device if event["start"] < wait["end"]]
    launched = [event for event in launches if event["start"] < wait["end"]]
    say(
        f"longest wait {wait['start'] - first} to {wait['end'] - first} ns; device events before its end: {len(before)}"
    )
    say(f"launches before its end: {len(launched)}; from its end to the end of the file {last - wait['end']} ns")
    sizes = sorted(int(event["args"].get("bytes") or 0) for event in calls if event["name"] == "hipMalloc")
    say(
        f"allocated {sizes}, the last three at "
        f"{[event['start'] - first for event in calls if event['name'] == 'hipMalloc'][-3:]}"
    )
    run = Counter(str(event["name"])[:60] for event in device)
    say(f"ran on the device: {run.most_common(4)}")
    say("kernels captured: count, grid, block")
    kernels = Counter(
        (str(event["args"]["kernel"])[:60], str(event["args"]["grid"]), str(event["args"]["block"]))
        for event in captured
    )
    for (name, grid, block), count in kernels.most_common():
        say(f"  {count:3d} {grid} {block} {name}")
    say("shapes of the products, of experts, of the rotary table and of the cache")
    shapes = Counter(
        f"{event['name']} {event['args'].get('Input Dims')} {event['args'].get('Input type')}"[:150]
        for event in events
        if category(event) == "cpu_op" and (event["name"] in SHAPED or "2944]" in str(event["args"].get("Input Dims")))
    )
    for line, count in shapes.most_common():
        say(f"  {count:3d} {line}")


if __name__ == "__main__":
    main()
