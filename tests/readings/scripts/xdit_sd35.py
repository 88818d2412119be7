"""Figures of the reading `xdit_sd35`: one image of Stable Diffusion 3.5 under xDiT, MI300X."""

from __future__ import annotations

import statistics
import sys
from collections import Counter, defaultdict
from itertools import pairwise

from raw_trace import Event, Interval, category, complete_events, length, on_device, union, within

ATTENTION_FLOP = 4 * 2 * 38 * 4429 * 4429 * 64
PRODUCTS_FLOP = 2 * 8192 * 2432 * (4 * 2432 + 9728 + 9728) * 152
PHASES = (
    "_execution_device",
    "encode_prompt",
    "_get_clip_prompt_embeds",
    "_get_t5_prompt_embeds",
    "nn.Module: SD3Transformer2DModel_0",
    "nn.Module: Decoder_0",
    "pt_to_numpy",
    "numpy_to_pil",
)


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def took(events: list[Event]) -> int:
    """Sum of their lengths, ns."""
    return sum(event["end"] - event["start"] for event in events)


def calls_in(frame: Event, events: list[Event]) -> list[Event]:
    """What the frame itself calls, in order."""
    made: list[Event] = []
    for event in events:
        inside = frame["start"] < event["start"] and event["end"] <= frame["end"]
        if inside and (not made or event["start"] >= made[-1]["end"]):
            made.append(event)
    return made


def frame_of_pauses(frame: Event, events: list[Event], busy: list[Interval], first: int) -> None:
    """How the pause between consecutive calls of one frame grows."""
    made = calls_in(frame, events)
    pauses = [after["start"] - before["end"] for before, after in pairwise(made)]
    tenth = len(pauses) // 10
    medians = [statistics.median(pauses[at : at + tenth]) / 1000 for at in range(0, 10 * tenth, tenth)]
    works = length(within(busy, (frame["start"], frame["end"])))
    say(f"frame at {frame['start'] - first}: {frame['end'] - frame['start']} ns, {len(made)} calls, busy {works} ns")
    say(f"  pauses {sum(pauses)} ns, calls {took(made)} ns; median by tenths, us: {[round(m, 1) for m in medians]}")
    say(f"  were all pauses as in the first tenth: {round(medians[0] * 1000 * len(pauses))} ns of pauses")
    starts = [event for event in made if "assert_size_stride" in event["name"]]
    ends = next(start for start, _ in busy if start > frame["start"] + 1_000_000)
    before = sum(event["start"] < ends for event in starts)
    say(f"  first kernel after {ends - frame['start']} ns; {before} assert_size_stride before it")


def main() -> None:
    """Print them."""
    events = complete_events(sys.argv[1])
    first, last = events[0]["start"], max(event["end"] for event in events)
    step = next(event for event in events if str(event["name"]).startswith("ProfilerStep"))
    device = on_device(events)
    busy = union((event["start"], event["end"]) for event in device)
    say(f"recording {last - first} ns, {step['name']} {step['end'] - step['start']} ns, busy {length(busy)} ns")
    main_thread = [event for event in events if event["tid"] == step["tid"]]
    say(f"events of the main thread {dict(Counter(category(event) for event in main_thread))}")
    calls = {event["args"].get("correlation"): event for event in events if category(event) == "cuda_runtime"}
    say(f"device events {len(device)}, without a launch {sum(e['args']['correlation'] not in calls for e in device)}")
    gaps = sorted(((after[0] - before[1], before[1] - first) for before, after in pairwise(busy)), reverse=True)
    say(f"idle {sum(gap for gap, _ in gaps)} ns; largest (ns, at) {gaps[:5]}")
    python = [event for event in main_thread if category(event) == "python_function"]
    for part in PHASES:
        for frame in [event for event in python if part in event["name"] and event["end"] - event["start"] > 400_000]:
            window = (frame["start"], frame["end"])
            works = length(within(busy, window))
            say(f"{part} at {window[0] - first}: {window[1] - window[0]} ns, device busy {works} ns")
    on_host = [event for event in main_thread if category(event) in ("python_function", "cpu_op", "cuda_runtime")]
    for frame in [event for event in python if "/ov/" in event["name"] and event["end"] - event["start"] > 100_000_000]:
        frame_of_pauses(frame, on_host, busy, first)
    passes = [event for event in python if event["name"] == "nn.Module: SD3Transformer2DModel_0"]
    idle = took(passes) - sum(length(within(busy, (event["start"], event["end"]))) for event in passes)
    say(f"idle in the passes {idle} ns")
    texts = [e for e in python if "_prompt_embeds" in e["name"] and e["name"].startswith("diffusers")]
    again = (texts[len(texts) // 2]["start"], texts[-1]["end"])
    say(f"encoders for the second time {again[1] - again[0]} ns, device busy {length(within(busy, again))} ns")
    asserts = [event for event in python if "assert_size_stride" in event["name"]]
    say(f"assert_size_stride: {len(asserts)} calls, {took(asserts) / len(asserts):.0f} ns each")
    encode = next(event for event in python if "encode_prompt" in event["name"])
    window = (encode["start"], encode["end"])
    native = [
        e for e in main_thread if category(e) in ("cpu_op", "cuda_runtime") and window[0] <= e["start"] < window[1]
    ]
    ran = [event for event in device if window[0] <= event["start"] < window[1]]
    lag = statistics.median(event["start"] - calls[event["args"]["correlation"]]["start"] for event in ran)
    median = statistics.median(event["end"] - event["start"] for event in ran)
    native_ns = length(union((event["start"], event["end"]) for event in native))
    say(f"encoders: {len(ran)} device events of {median} ns, {lag} ns after their launch (medians)")
    say(f"encoders: operators and the driver take {native_ns} ns of {window[1] - window[0]}")
    synchronous = [event for event in calls.values() if event["name"] == "hipMemcpyWithStream"]
    say(f"hipMemcpyWithStream (ns, bytes): {[(e['end'] - e['start'], e['args'].get('bytes')) for e in synchronous]}")
    by_name: dict[str, list[Event]] = defaultdict(list)
    for event in device:
        by_name[str(event["name"])[:75]].append(event)
    for name, those in sorted(by_name.items(), key=lambda row: -took(row[1]))[:24]:
        say(f"  {took(those):9d} ns {len(those):3d} x {took(those) / len(those) / 1000:8.2f} us {name}")
    attention = [event for event in by_name["attn_fwd"] if event["start"] > window[1]]
    large = [event for event in attention if event["end"] - event["start"] < 2_000_000]
    rate = ATTENTION_FLOP * len(large) / took(large) / 1000
    say(f"attention of the transformer: {len(large)}, {took(large)} ns, {rate:.0f} TFLOP/s")
    say(f"  a tenth faster {took(large) / 11:.0f} ns, at 450 TFLOP/s {took(large) * (1 - rate / 450):.0f} ns to gain")
    products = [event for event in device if "MT320x224x64" in event["name"] or "MT256x224x64" in event["name"]]
    say(f"addmm_gelu {took([event for event in device if 'addmm_gelu' in event['name']])} ns")
    say(f"large products {len(products)}, {took(products)} ns, {PRODUCTS_FLOP / took(products) / 1000:.0f} TFLOP/s")


if __name__ == "__main__":
    main()
