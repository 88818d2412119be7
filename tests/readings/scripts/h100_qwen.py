"""Figures of the reading `h100_qwen`: one forward pass of Qwen1.5-0.5B over 16 prompts of 559 tokens, H100."""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise
from statistics import median

from raw_trace import Event, category, complete_events, length, on_device, union, within

PEAK_BYTES_PER_NS = 3350.0
REACHED = 0.8
"""Share of the memory rate that a fused elementwise kernel reaches."""
ROWS, HIDDEN, INNER, LAYERS = 16 * 559, 1024, 2816, 24
SIMPLE = ("mul", "pow", "mean", "add", "rsqrt", "copy_", "cat", "neg", "silu")
ELEMENTWISE = {f"aten::{name}" for name in SIMPLE}


def say(*parts: object) -> None:
    """Print a line."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")


def took(event: Event) -> int:
    """Its length, ns."""
    return int(event["end"]) - int(event["start"])


def group(op: str, dims: str) -> str:
    """Which part of the model an elementwise kernel belongs to."""
    if str(INNER) in dims:
        return "activation"
    if op == "aten::copy_" and ", 64]" in dims:
        return "attention copies"
    if ", 64]" in dims or ", 32]" in dims:
        return "rotary"
    return "norm and residual"


def main() -> None:
    """Print them."""
    events = complete_events(sys.argv[1])
    start = events[0]["start"]
    host, step = (
        next(e for e in events if e["name"].startswith("ProfilerStep") and category(e) == kind)
        for kind in ("user_annotation", "gpu_user_annotation")
    )
    say(f"step on the host {took(host)} ns, on the device {took(step)} ns, recording {events[-1]['end'] - start}")
    for event in events:
        if category(event) == "cuda_runtime" and "DeviceSynchronize" in event["name"]:
            say(f"  {event['name']} from {event['start'] - start} to {event['end'] - start}, {took(event)} ns")
    calls = [e for e in events if category(e) in {"cuda_runtime", "cuda_driver"}]
    known = {e["args"].get("correlation"): e for e in calls}
    device = sorted(on_device(events), key=lambda e: int(e["start"]))
    before = [e for e in device if e["args"]["correlation"] not in known]
    own = [e for e in device if e["args"]["correlation"] in known]
    drained = before[-1]["end"] - host["start"]
    say(f"device events without launch {len(before)}, {drained} ns into the step; own {len(own)}")
    say(f"the step before took the host about {took(step) - drained} ns, this one {own_host(events, host)} ns")
    busy = union((e["start"], e["end"]) for e in own)
    span = busy[-1][1] - busy[0][0]
    gaps = [(b[0] - a[1], a[1] - start) for a, b in pairwise(busy)]
    say(
        f"own device span {span}, busy {length(busy)} ns ({length(busy) / span:.3f}), idle {sum(g for g, _ in gaps)} ns"
    )
    ramp = (busy[0][0], busy[0][0] + 3_000_000)
    idle_ramp = ramp[1] - ramp[0] - length(within(busy, ramp))
    say(f"idle in its first 3 ms {idle_ramp} ns; largest gaps {sorted(gaps, reverse=True)[:4]}")
    lag = [e["start"] - known[e["args"]["correlation"]]["start"] for e in own]
    say(f"launch to start: median {median(lag):.0f}, last {lag[-1]} ns; kernels mean {length(busy) / len(own):.0f} ns")
    ops = {e["args"].get("External id"): e for e in events if category(e) == "cpu_op"}
    parts: dict[str, list[int]] = defaultdict(list)
    casts = [0, 0]
    for event in own:
        op = ops.get(event["args"].get("External id"))
        name, dims = (str(op["name"]), str(op["args"].get("Input Dims"))) if op else ("", "")
        if category(event) != "kernel":
            parts["sets and copies"].append(took(event))
        elif name in ELEMENTWISE and "16" in dims:
            parts[group(name, dims)].append(took(event))
            kinds = op["args"].get("Input type", []) if op else []
            if name == "aten::copy_" and set(kinds[:2]) == {"float", "c10::BFloat16"}:
                casts[kinds[0] == "float"] += took(event)
        else:
            parts[name or "other"].append(took(event))
    for part, lengths in sorted(parts.items(), key=lambda row: -sum(row[1])):
        say(f"  {sum(lengths):9d} ns {len(lengths):5d} x {sum(lengths) / len(lengths) / 1000:7.1f} us {part}")
    row = 2.0 * ROWS * HIDDEN
    ideal = {
        "norm and residual": (2 * LAYERS * 4 + 2) * row,
        "rotary": LAYERS * 4 * row,
        "activation": LAYERS * 3 * 2.0 * ROWS * INNER,
        "attention copies": 0.0,
    }
    need = {part: round(size / (REACHED * PEAK_BYTES_PER_NS)) for part, size in ideal.items()}
    have = sum(sum(parts[part]) for part in ideal)
    least = sum(need.values())
    say(
        f"elementwise {have} ns; fused {need}, {least} ns;",
        f"high {have - least}, low at half that rate {have - 2 * least},",
        f"with the copies kept {have - 2 * least - sum(parts['attention copies'])} ns",
    )
    say(f"casts to float {casts[1]} ns, back {casts[0]} ns")
    attention = parts["aten::_flash_attention_forward"]
    each = sum(attention) / len(attention)
    work = 4 * 16 * 16 * 559 * 559 * 64 / 2
    say(
        f"attention {sum(attention)} ns, {work / each / 1000:.0f} TFLOP/s causal,",
        f"its tensors alone {4 * row / PEAK_BYTES_PER_NS:.0f} ns",
    )
    for name, factors in (("aten::mm", None), ("aten::addmm", 2 * ROWS * HIDDEN * HIDDEN)):
        say(f"{name} {sum(parts[name])} ns", f"{factors / median(parts[name]) / 1000:.0f} TFLOP/s" if factors else "")


def own_host(events: list[Event], step: Event) -> int:
    """From the first to the last operator of the step, ns."""
    ops = [e for e in events if category(e) == "cpu_op" and step["start"] <= e["start"] < step["end"]]
    return max(int(e["end"]) for e in ops) - int(ops[0]["start"])


if __name__ == "__main__":
    main()
