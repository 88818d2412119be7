"""Figures of the reading `h100_timesformer`: one video of 128 frames through a classification pipeline, H100."""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise

from raw_trace import Event, category, complete_events, length, on_device, union

LINK_BYTES_PER_NS = 50.0
"""From pinned memory, about 80 % of PCIe 5 x16."""
FLASH_FLOPS_PER_NS = (350_000.0, 150_000.0)
"""What fused attention reaches with heads of 64 on an H100: well, and badly."""
BATCH_HEADS, TOKENS, HEAD = 8 * 12, 3137, 64


def say(*parts: object) -> None:
    """Print a line."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")


def took(event: Event) -> int:
    """Its length, ns."""
    return int(event["end"]) - int(event["start"])


def by_frame(events: list[Event], outer: Event) -> dict[str, list[int]]:
    """Count, own time and whole time of each function below one call."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    stack: list[Event] = []
    for event in events:
        if category(event) not in {"python_function", "cpu_op"} or event["tid"] != outer["tid"]:
            continue
        if not outer["start"] <= event["start"] < outer["end"]:
            continue
        while stack and stack[-1]["end"] <= event["start"]:
            stack.pop()
        row = sums[str(event["name"])]
        row[0] += 1
        row[1] += took(event)
        row[2] += took(event)
        if stack:
            sums[str(stack[-1]["name"])][1] -= took(event)
        stack.append(event)
    return sums


def main() -> None:
    """Print them."""
    events = complete_events(sys.argv[1])
    start = events[0]["start"]
    step = next(e for e in events if e["name"].startswith("ProfilerStep") and category(e) == "user_annotation")
    device = sorted(on_device(events), key=lambda e: int(e["start"]))
    busy = union((e["start"], e["end"]) for e in device)
    span = busy[-1][1] - busy[0][0]
    say(f"step {took(step)} ns; device from {busy[0][0] - step['start']} ns of it, span {span}, busy {length(busy)} ns")
    say(f"after the last device event {step['end'] - busy[-1][1]} ns; device events {len(device)}")
    gaps = sorted(((b[0] - a[1], a[1] - start) for a, b in pairwise(busy)), reverse=True)
    say(f"idle in the span {sum(gap for gap, _ in gaps)} ns, largest {gaps[:4]}")
    preprocess = next(e for e in events if "video_classification" in e["name"] and e["name"].endswith(": preprocess"))
    frames = by_frame(events, preprocess)
    recorded = sum(row[0] for row in frames.values())
    say(f"{preprocess['name']}: {took(preprocess)} ns, {recorded} frames and operators recorded in it")
    for name, (count, own, whole) in sorted(frames.items(), key=lambda row: -row[1][1])[:7]:
        say(f"  own {own:10d} ns of {whole:10d} {count:4d} x {name[:80]}")
    for part in ("rescale", "resize", "normalize", "read_video_pyav", "as_tensor", "_preprocess_image"):
        rows = {name: row for name, row in frames.items() if name.endswith(f": {part}")}
        say(f"  whole {part}: {max(row[2] for row in rows.values())} ns", [row[0] for row in rows.values()])
    ops = {e["args"].get("External id"): e for e in events if category(e) == "cpu_op"}
    parts: dict[str, list[int]] = defaultdict(list)
    for event in device:
        op = ops.get(event["args"].get("External id"))
        dims = str(op["args"].get("Input Dims")) if op else ""
        name = str(op["name"]) if op else ""
        if "3137, 3137" in dims or (name == "aten::bmm" and "3137" in dims):
            parts[f"spatial attention {name}"].append(took(event))
        elif name in {"aten::copy_", "aten::cat"} and category(event) == "kernel":
            parts["copies and cats"].append(took(event))
        elif category(event) == "gpu_memcpy":
            rate = event["args"]["bytes"] / took(event)
            say(f"{event['name']}: {event['args']['bytes']} bytes, {took(event)} ns, {rate:.1f} GB/s")
            parts[str(event["name"])].append(took(event))
        else:
            parts[name or category(event)].append(took(event))
    for part, lengths in sorted(parts.items(), key=lambda row: -sum(row[1]))[:14]:
        say(f"  {sum(lengths):9d} ns {len(lengths):4d} x {sum(lengths) / len(lengths) / 1000:7.1f} us {part}")
    scores = {part: lengths for part, lengths in parts.items() if part.startswith("spatial")}
    whole = sum(sum(lengths) for lengths in scores.values())
    between = whole - sum(scores["spatial attention aten::bmm"])
    work = 4 * BATCH_HEADS * TOKENS * TOKENS * HEAD
    fused = [round(12 * work / rate) for rate in FLASH_FLOPS_PER_NS]
    product = work / 2 / (sum(scores["spatial attention aten::bmm"]) / 24)
    say(f"attention {whole} ns, between the products {between}, products at {product / 1000:.0f} TFLOP/s")
    say(f"fused {fused} ns; saved {[whole - each for each in fused]} ns")
    copy = next(e for e in device if "HtoD" in e["name"])
    pinned = copy["args"]["bytes"] / LINK_BYTES_PER_NS
    say(f"the copy to the device from pinned memory {pinned:.0f} ns; gap behind it {gaps[0][0]} ns")
    for event in events:
        if category(event) == "cuda_runtime" and (took(event) > 1_000_000 or "ynchronize" in event["name"]):
            say(f"  {event['name']} at {event['start'] - start}, {took(event)} ns")


if __name__ == "__main__":
    main()
