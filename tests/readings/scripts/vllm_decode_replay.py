"""Figures of the reading `vllm_decode_replay`: one decode step of vLLM, replayed from a graph, MI300X.

The sizes of the weights are those that `vllm_decode_capture.py` prints from the capture of this graph: 32 experts,
products of 3072 by 5888 and 2944 by 3072 in 4 bits with one byte of scale for 32 numbers; dense products in bfloat16.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise

from raw_trace import Event, category, complete_events, length, on_device, union

MXFP4_BYTES = 4.25 / 8
MOE_BYTES = {"swiglu": 32 * 3072 * 5888 * MXFP4_BYTES, "second": 32 * 2944 * 3072 * MXFP4_BYTES}
DENSE_BYTES_PER_LAYER = 2 * (2880 * 5120 + 4096 * 2880)
HEAD_BYTES = 2 * 201088 * 2880
KV_BYTES_PER_TOKEN = 2 * 2 * 8 * 64


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def table(kernels: list[Event]) -> dict[str, tuple[int, int]]:
    """Time in ns and count by name, by time."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for event in kernels:
        name = str(event["name"])
        sums[name][0] += event["end"] - event["start"]
        sums[name][1] += 1
    return {name: (total, count) for name, (total, count) in sorted(sums.items(), key=lambda row: -row[1][0])}


def main() -> None:
    """Print them."""
    events = complete_events(sys.argv[1])
    first, last = events[0]["start"], max(event["end"] for event in events)
    say(f"recording {last - first} ns")
    for event in events:
        if category(event) == "user_annotation":
            say(f"range {event['name']}: {event['end'] - event['start']} ns on the host")
    device = on_device(events)
    busy = union((event["start"], event["end"]) for event in device)
    span = busy[-1][1] - busy[0][0]
    say(f"device: first event {busy[0][0] - first} ns after the start, span {span} ns, busy {length(busy)} ns")
    say(f"busy of the span {length(busy) / span:.4f}, of the recording {length(busy) / (last - first):.4f}")
    gaps = sorted(((after[0] - before[1], before[1] - first) for before, after in pairwise(busy)), reverse=True)
    say(f"idle in the span {sum(gap for gap, _ in gaps)} ns; largest (ns, at) {gaps[:3]}")
    calls = [event for event in events if category(event) == "cuda_runtime"]
    launch = {event["args"].get("correlation"): event for event in calls}
    lags = [
        (event["start"] - launch[event["args"]["correlation"]]["start"], event["name"][:40])
        for event in device
        if event["args"].get("correlation") in launch
    ]
    say(f"launch to start: first event {lags[0]}, last event {lags[-1]}; events with their launch {len(lags)}")
    for name in ("hipGraphLaunch", "hipEventSynchronize", "hipMemcpyAsync", "hipStreamBeginCapture"):
        took = [event["end"] - event["start"] for event in calls if event["name"] == name]
        say(f"{name}: {len(took)} calls, {sum(took)} ns")
    graph = next(event for event in calls if event["name"] == "hipGraphLaunch")
    replayed = [event for event in device if event["args"]["correlation"] == graph["args"]["correlation"]]
    say(f"device events of the graph launch: {len(replayed)}; launches that name a grid:")
    for event in calls:
        if "grid" in event["args"]:
            say(f"  {event['args']['grid']} x {event['args']['block']} {event['args']['kernel'][:50]}")
    copies = [event for event in device if category(event) == "gpu_memcpy"]
    took = [event["end"] - event["start"] for event in copies]
    say(f"copies: {len(copies)}, {sum(took)} ns, each {min(took)} to {max(took)} ns")
    kernels = [event for event in device if category(event) == "kernel"]
    names = table(kernels)
    for name, (total, count) in names.items():
        say(f"  {total:9d} ns {count:4d} x {total / count / 1000:7.2f} us {total / span:.3f} {name[:80]}")

    def of(part: str) -> tuple[int, int]:
        rows = [row for name, row in names.items() if part in name]
        return sum(row[0] for row in rows), sum(row[1] for row in rows)

    head = of("MT448x32x64")[0]
    rate = HEAD_BYTES / head
    say(f"output projection: {HEAD_BYTES} B in {head} ns: {rate:.0f} GB/s, the rate that is taken as reachable")
    swiglu, second = of("mxfp4_16x128x256x1_swiglu"), next(v for n, v in names.items() if n.endswith("256x1"))
    for name, (total, count) in (("swiglu", swiglu), ("second", second)):
        ideal = MOE_BYTES[name] / rate
        brings = total - count * ideal
        say(f"MoE {name}: {MOE_BYTES[name] * count / total:.0f} GB/s, at most {brings:.0f} ns to gain")
    half = swiglu[0] / swiglu[1] * MOE_BYTES["second"] / MOE_BYTES["swiglu"]
    say(f"MoE second at the rate of the first: {second[0] - second[1] * half:.0f} ns to gain")
    dense, count = of("MT32x32x256")
    ideal = DENSE_BYTES_PER_LAYER / rate * count / 2
    say(f"dense products: {DENSE_BYTES_PER_LAYER * count / 2 / dense:.0f} GB/s, {dense - ideal:.0f} ns to gain")
    attention, count = of("unified_attention_3d")
    ideal = count * 55086 * KV_BYTES_PER_TOKEN / rate
    say(f"full attention: {ideal / attention * rate:.0f} GB/s, {attention - ideal:.0f} ns to gain")
    small = {name: row for name, row in names.items() if row[1] >= 24 and row[0] / row[1] < 9000 and "Cijk" not in name}
    total, count = sum(row[0] for row in small.values()), sum(row[1] for row in small.values())
    say(f"short kernels of every layer (no products): {count}, {total} ns, {total / count:.0f} ns each")
    floor = sum(took) / len(took)
    say(f"a copy of 32 to 9216 B takes {floor:.0f} ns; 3 or 7 less a layer: {72 * floor:.0f}, {168 * floor:.0f}")
    grows = sum(row[0] for name, row in names.items() if "attention" in name or "segments" in name)
    say(f"attention in all {grows} ns; twice the batch brings {span - (span + grows) / 2:.0f} ns for 32 tokens")


if __name__ == "__main__":
    main()
