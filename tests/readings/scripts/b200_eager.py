"""Figures of the reading `b200_eager`: one forward pass of vLLM without graphs, 888 tokens, rank 0 of 8, B200."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from statistics import median

from raw_trace import Event, category, complete_events, length, ns, on_device, union

GRAPH_PAUSE_NS = 500
RECORD_NS = 1000
"""Assumed cost of one recorded event on the host."""
LINK_BYTES_PER_NS = 900.0
MEMORY_BYTES_PER_NS = 0.8 * 8000.0
MXFP4_BYTES = 4.25 / 8
EXPERTS, HIDDEN, INTERMEDIATE = 128, 3072, 384
"""Experts by the router's output, padded hidden size by moe_forward; 2880 / 8 padded to 128: not in the file."""


def say(*parts: object) -> None:
    """Print a line."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")


def took(event: Event) -> int:
    """Its length, ns."""
    return int(event["end"]) - int(event["start"])


def main() -> None:
    """Print them."""
    events = complete_events(sys.argv[1])
    start = events[0]["start"]
    window = next(e for e in events if category(e) == "user_annotation" and e["name"].startswith("execute_context"))
    say(
        f"window {window['name']}: {took(window)} ns",
        "ProfilerStep marks",
        sum("ProfilerStep" in e["name"] for e in events),
    )
    device = sorted(on_device(events), key=lambda e: int(e["start"]))
    busy = union((e["start"], e["end"]) for e in device)
    span = busy[-1][1] - busy[0][0]
    say(f"device: first event at {busy[0][0] - start} ns, span {span} ns, busy {length(busy)} ns, {len(device)} events")
    say(f"mean kernel {sum(map(took, device)) / len(device):.0f} ns, median {median(map(took, device)):.0f} ns")
    say("profiler's own", [(e["name"], took(e)) for e in events if category(e) == "overhead"][:2])
    calls = [e for e in events if category(e) in {"cuda_runtime", "cuda_driver"}]
    launch = {e["args"].get("correlation"): e for e in calls}
    after = {e["start"]: e for e in reversed(device)}
    gaps = [(b[0] - a[1], a[1], after[b[0]]) for a, b in pairwise(busy)]
    late = [gap for gap in gaps if launch[gap[2]["args"]["correlation"]]["start"] >= gap[1]]
    say(
        f"gaps {len(gaps)}, {sum(gap[0] for gap in gaps)} ns;",
        f"launched after the device was idle {len(late)}, {sum(g[0] for g in late)} ns",
    )
    short = [gap for gap in late if gap[0] <= 1_000_000]
    high = sum(gap[0] - GRAPH_PAUSE_NS for gap in short)
    say(f"late gaps of at most 1 ms: {len(short)}, {sum(gap[0] for gap in short)} ns, less a graph's pauses {high} ns")
    for gap in sorted(gaps, key=lambda row: -row[0])[:6]:
        say(f"  gap {gap[0]} ns at {gap[1] - start}, ends with {gap[2]['name'][:60]}")
    recorded = Counter(category(e) for e in events)
    cost = RECORD_NS * sum(recorded[kind] for kind in ("python_function", "cpu_op", "cuda_runtime", "cuda_driver"))
    attention = [took(e) for e in events if e["name"] == "vllm::unified_attention_with_output"]
    say(
        f"recorded on the host {dict(recorded)}: about {cost} ns;",
        f"attention ops {sum(attention)} ns; low {high - cost - sum(attention)} ns",
    )
    layers = [e["start"] for e in events if e["name"] == "vllm::moe_forward"]
    pitch = [b - a for a, b in pairwise(layers)]
    say(f"layers {len(layers)}, pitch first {pitch[0]} ns, median {median(pitch):.0f} ns")
    extra = 0
    for name, period in (("aten::addmm", 3), ("aten::mm", 1), ("vllm::unified_attention_with_output", 1)):
        lengths = [took(e) for e in events if e["name"] == name]
        for index in range(period):
            same = lengths[index::period]
            usual = int(median(same[1:])) if len(same) > 1 else 60_000
            extra += same[0] - usual
            say(f"first call {name} {index}: {same[0]} ns, later {usual} ns")
    say(f"first calls of a shape beyond later ones {extra} ns")
    copies = [e for e in device if e["name"].startswith("Memcpy DtoD")]
    ops = {e["args"].get("External id"): e for e in events if category(e) == "cpu_op"}
    host = sum(took(ops[e["args"]["External id"]]) for e in copies)
    sizes = dict(Counter(e["args"]["bytes"] for e in copies))
    say(
        f"copies on the device {len(copies)}, {sum(map(took, copies))} ns, bytes {sizes};",
        f"their operators {host} ns on the host",
    )
    reduces = [e for e in device if "multimem_all_reduce" in e["name"]]
    usual = int(median(map(took, reduces[1:])))
    volume = min(sizes)
    say(
        f"all-reduces {len(reduces)}, {sum(map(took, reduces))} ns, first {took(reduces[0])},",
        f"median {usual}, grid {reduces[0]['args']['grid']}",
    )
    best = min(map(took, reduces))
    say(
        f"  {volume} bytes in {best} ns: {volume / best:.0f} GB/s,",
        f"bus {volume * 1.75 / best:.0f} of {LINK_BYTES_PER_NS:.0f} GB/s",
    )
    experts = [e for e in device if e["name"].startswith("bmm_")]
    first = [took(e) for e in experts if "swiGlu" in e["name"]]
    second = [took(e) for e in experts if "swiGlu" not in e["name"]]
    ideal = [EXPERTS * n * HIDDEN * MXFP4_BYTES / MEMORY_BYTES_PER_NS for n in (2 * INTERMEDIATE, INTERMEDIATE)]
    saved = sum(first) - len(first) * ideal[0] + sum(second) - len(second) * ideal[1]
    say(
        f"expert products {sum(first)} + {sum(second)} ns;",
        f"weights alone take {ideal[0]:.0f} and {ideal[1]:.0f} ns each; {saved:.0f} ns more",
    )
    small = [e for e in device if "elementwise" in e["name"] or "FillFunctor" in e["name"]]
    say(f"elementwise kernels {len(small)}, {sum(map(took, small))} ns")
    waits = [e for e in calls if "ynchronize" in e["name"]]
    say(f"synchronizing calls {len(waits)}; calls of at least 1 ms {[e['name'] for e in calls if took(e) >= ns(1000)]}")


if __name__ == "__main__":
    main()
