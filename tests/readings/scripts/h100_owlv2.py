"""Figures of the reading `h100_owlv2`: one image and five labels through a detection pipeline, H100."""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise

from raw_trace import Event, category, complete_events, length, on_device, union, within

FLASH_FLOPS_PER_NS = (350_000.0, 150_000.0)
"""What fused attention reaches with heads of 64 on an H100: well, and badly."""
HEADS, TOKENS, HEAD = 16, 5185, 64
DONE = ("zoom_shift", "image_transforms.py(390): normalize", "load_image", "owlv2.py(368): preprocess")


def say(*parts: object) -> None:
    """Print a line."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")


def took(event: Event) -> int:
    """Its length, ns."""
    return int(event["end"]) - int(event["start"])


def part_of(name: str, dims: str, event: Event) -> str:
    """Class of a device event."""
    if f"{TOKENS}, {TOKENS}" in dims or (name == "aten::bmm" and str(TOKENS) in dims):
        return f"attention {name}"
    if category(event) == "gpu_memcpy":
        return str(event["name"])
    if name in {"aten::mul", "aten::sigmoid"} and "4096" in dims:
        return "activation"
    if name == "aten::copy_":
        return "copies on the device"
    return name or category(event)


def main() -> None:
    """Print them."""
    events = complete_events(sys.argv[1])
    step = next(e for e in events if e["name"].startswith("ProfilerStep") and category(e) == "user_annotation")
    loader = [e for e in events if "DataLoader" in e["name"] and category(e) == "user_annotation"]
    fetches = [e for e in loader if took(e) > 1_000_000]
    say(f"fetches {len(loader)}, of them with a batch {len(fetches)}")
    device = sorted(on_device(events), key=lambda e: int(e["start"]))
    busy = union((e["start"], e["end"]) for e in device)
    start = step["start"]
    say(f"step {took(step)} ns; device busy {length(busy)} ns, {len(device)} events, first at {busy[0][0] - start} ns")
    spans = [(e["start"], e["end"]) for e in fetches]
    fetched = [took(e) for e in fetches]
    say(f"fetches {len(fetches)} ({fetches[0]['name']}): {fetched}, {sum(fetched)} ns")
    say(f"device busy in the fetches {[length(within(busy, span)) for span in spans]} ns")
    bounds = [*[e["start"] for e in fetches[1:]], step["end"]]
    rest = [bound - e["end"] for e, bound in zip(fetches, bounds, strict=True)]
    work = [length(within(busy, (e["end"], bound))) for e, bound in zip(fetches, bounds, strict=True)]
    say(f"rest of each pass {rest}, device busy in it {work} ns")
    hidden = sum(min(fetch, other) for fetch, other in zip(fetched[1:], rest, strict=False))
    say(f"one worker hides at most {hidden} ns of the fetches after the first")
    for name in DONE:
        same = [e for e in events if name in e["name"] and category(e) == "python_function"]
        say(f"  {name}: {len(same)} calls, {sum(map(took, same))} ns, first {took(same[0])}")
    calls = [e for e in events if category(e) in {"cuda_runtime", "cuda_driver"}]
    launch = {e["args"].get("correlation"): e for e in calls}
    vision = [e for e in events if "Owlv2VisionTransformer" in e["name"]]
    text = [e for e in events if "Owlv2TextTransformer" in e["name"]]
    for title, modules in (("vision tower", vision), ("text tower", text)):
        inside = [
            took(e)
            for e in device
            if any(m["start"] <= launch[e["args"]["correlation"]]["start"] < m["end"] for m in modules)
        ]
        on_host = [took(m) for m in modules]
        say(f"{title}: {len(modules)} calls, device {sum(inside)} ns in {len(inside)} events, host {on_host} ns")
    ops = {e["args"].get("External id"): e for e in events if category(e) == "cpu_op"}
    parts: dict[str, list[int]] = defaultdict(list)
    for event in device:
        op = ops.get(event["args"].get("External id"))
        name, dims = (str(op["name"]), str(op["args"].get("Input Dims"))) if op else ("", "")
        parts[part_of(name, dims, event)].append(took(event))
    for part, lengths in sorted(parts.items(), key=lambda row: -sum(row[1]))[:12]:
        say(f"  {sum(lengths):9d} ns {len(lengths):4d} x {sum(lengths) / len(lengths) / 1000:7.1f} us {part}")
    layers = len(parts["attention aten::_softmax"])
    whole = sum(sum(lengths) for part, lengths in parts.items() if part.startswith("attention"))
    products = sum(parts["attention aten::bmm"])
    flops = 4 * HEADS * TOKENS * TOKENS * HEAD
    fused = [round(layers * flops / rate) for rate in FLASH_FLOPS_PER_NS]
    say(f"attention {whole} ns in {layers} layers, products at {flops * layers / products / 1000:.0f} TFLOP/s")
    say(f"  fused {fused} ns, saved {[whole - each for each in fused]} ns; without the softmax {whole - products} ns")
    waits = [e for e in calls if "ynchronize" in e["name"] and took(e) > 1_000_000]
    say(f"long waits of the host {[took(e) for e in waits]}, {sum(map(took, waits))} ns")
    issue = [w["start"] - e["end"] for w, e in zip(waits, fetches, strict=True)]
    say(f"from the end of the fetch to that wait {issue} ns")
    back = [e for e in device if "DtoH" in e["name"]]
    large = [e["args"]["bytes"] for e in back if e["args"]["bytes"] > 1_000_000]
    leave = 0
    for fetch, bound in zip(fetches, bounds, strict=True):
        own = [e for e in back if fetch["end"] <= e["start"] < bound]
        leave += own[-1]["end"] - own[0]["start"]
    say(f"copies to the host {len(back)}, {sum(map(took, back))} ns; first to last of each pass {leave} ns")
    say(f"  {len(large)} above 1 MB, {sum(large)} of {sum(e['args']['bytes'] for e in back)} bytes")
    forth = [e for e in device if "HtoD" in e["name"]]
    say(
        f"copies to the device {len(forth)}, {sum(map(took, forth))} ns, {sum(e['args']['bytes'] for e in forth)} bytes"
    )
    short = [b[0] - a[1] for a, b in pairwise(busy) if b[0] - a[1] <= 1_000_000]
    say(f"gaps of at most 1 ms {len(short)}, {sum(short)} ns; largest {sorted(short)[-3:]}")


if __name__ == "__main__":
    main()
