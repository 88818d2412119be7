"""Figures of the reading `vllm_piecewise_replay`: a mixed step of vLLM (prefill and decode), graphs between.

The shapes of captured kernels are those that `vllm_piecewise_capture.py` prints: products of experts of 3072 by 5888
and 2944 by 3072 (of the model's 2880 by 5760 and 2880 by 2880), four experts for each of 8192 rows.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise

from raw_trace import Event, category, complete_events, length, on_device, union

ROWS, LAYERS, HIDDEN = 8192, 24, 2880
FLOP = {
    "x1_swiglu": 2 * 4 * ROWS * 3072 * 5888,
    "128x128x128x1": 2 * 4 * ROWS * 2944 * 3072,
    "MT256x192x64": 2 * ROWS * HIDDEN * 5120,
    "MT160x256x64": 2 * ROWS * 4096 * HIDDEN,
}
MOVED_BYTES = {
    "Rmsnorm2d": 2 * ROWS * HIDDEN * 4,
    "_finalize_matmul_scatter": 2 * ROWS * (4 * 3072 + HIDDEN),
    "rotary_embedding": 2 * ROWS * (4096 + 512) * 2,
    "constant_pad": 2 * ROWS * (HIDDEN + 3072),
    "__to_copy_1": 131072 * 64 * (4 + 2),
}
HEAD_BYTES = 2 * 201088 * HIDDEN


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def took(events: list[Event]) -> int:
    """Sum of their lengths, ns."""
    return sum(event["end"] - event["start"] for event in events)


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
    gaps = sorted((after[0] - before[1] for before, after in pairwise(busy)), reverse=True)
    say(f"idle in the span {sum(gaps)} ns in {len(gaps)} gaps; largest {gaps[:3]}")
    calls = [event for event in events if category(event) == "cuda_runtime"]
    launch = {event["args"].get("correlation"): event for event in calls}
    known = [event for event in device if event["args"]["correlation"] in launch]
    lags = [event["start"] - launch[event["args"]["correlation"]]["start"] for event in known]
    say(f"device events {len(device)}, with their launch {len(known)}; launch to start: {lags[0]} to {lags[-1]} ns")
    for name in ("hipGraphLaunch", "hipEventSynchronize", "hipMemcpyAsync", "hipStreamBeginCapture"):
        those = [event for event in calls if event["name"] == name]
        say(f"{name}: {len(those)} calls, {took(those)} ns")
    graphs = {event["args"]["correlation"] for event in calls if event["name"] == "hipGraphLaunch"}
    say(f"device events of a graph launch: {sum(event['args']['correlation'] in graphs for event in device)}")
    say(f"launched one by one: {[event['args']['grid'] for event in calls if 'grid' in event['args']][1:3]} ...")
    copies = [event for event in device if category(event) == "gpu_memcpy"]
    say(f"copies {len(copies)}, {took(copies)} ns, {[event['name'] for event in copies[2:3]]}")
    kernels = [event for event in device if category(event) == "kernel"]
    by_name: dict[str, list[Event]] = defaultdict(list)
    for event in kernels:
        by_name[str(event["name"])].append(event)
    for name, those in sorted(by_name.items(), key=lambda row: -took(row[1])):
        each = took(those) / len(those) / 1000
        say(f"  {took(those):9d} ns {len(those):3d} x {each:8.2f} us {took(those) / span:.4f} {name[:70]}")

    def of(part: str) -> list[Event]:
        exact = [event for event in kernels if event["name"].endswith(part)]
        return exact or [event for event in kernels if part in event["name"]]

    rates = {part: flop * LAYERS / took(of(part)) / 1000 for part, flop in FLOP.items()}
    for part, rate in rates.items():
        say(f"{part}: {rate:.0f} TFLOP/s in {took(of(part))} ns")
    dense = min(rates["MT256x192x64"], rates["MT160x256x64"])
    for share in (0.7, 1.0):
        gain = sum(took(of(part)) * (1 - rates[part] / (share * dense)) for part in ("x1_swiglu", "128x128x128x1"))
        say(f"experts at {share:.0%} of the dense products' {dense:.0f} TFLOP/s: {gain:.0f} ns to gain")
    padded = took(of("x1_swiglu")) * (1 - 2944 * 5760 / (3072 * 5888)) + took(of("128x128x128x1")) * (1 - 2944 / 3072)
    say(f"experts padded only to tiles of 128: {padded:.0f} ns, the padding kernels {took(of('constant_pad'))}")
    rate_of_head = HEAD_BYTES / took(of("MT256x48x64"))
    say(f"output projection: {rate_of_head:.0f} GB/s")
    total = gain_of_all = 0.0
    for part, size in MOVED_BYTES.items():
        those = of(part)
        ideal = 0.0 if part in ("constant_pad", "__to_copy_1") else size * len(those) / rate_of_head
        total, gain_of_all = total + took(those), gain_of_all + took(those) - ideal
        say(
            f"{part}: {size * len(those) / took(those):.0f} GB/s, {took(those) - ideal:.0f} of {took(those)} ns to gain"
        )
    say(f"these kernels {total:.0f} ns, to gain {gain_of_all:.0f}")
    for event in of("kernel_unified_attention")[:2]:
        say(f"attention: {event['end'] - event['start']} ns")


if __name__ == "__main__":
    main()
