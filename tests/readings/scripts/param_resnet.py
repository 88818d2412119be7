"""ResNet-18 in float32 on a GeForce RTX 2080 Ti, 30 batches from a loader: `python param_resnet.py TRACE`."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise

from raw_trace import Interval, category, complete_events, length, on_device, union, within

FLOAT32 = ("sgemm", "scudnn", "winograd", "dgrad_engine", "wgrad_alg")


def ms(time_ns: float) -> str:
    """In ms with one place."""
    return f"{time_ns / 1e6:.1f} ms"


def main(path: str) -> None:
    """Print the figures of the reading."""
    events = [one for one in complete_events(path) if category(one) != "trace"]
    zero, end = events[0]["start"], max(one["end"] for one in events)
    print(f"recording: {end - zero} ns; steps marked: {sum('ProfilerStep' in one['name'] for one in events)}")
    device = on_device(events)
    busy = union((one["start"], one["end"]) for one in device)
    print(f"device busy {ms(length(busy))} of {ms(end - zero)}, last device event ends at {ms(busy[-1][1] - zero)}")
    last = max(events, key=lambda one: one["end"])
    print(f"last event: {last['name']} from {ms(last['start'] - zero)} to {ms(last['end'] - zero)}")
    marks = [one for one in events if category(one) == "user_annotation"]
    fetches = [one for one in marks if "DataLoader" in one["name"]]
    updates = [one for one in marks if one["name"].startswith("Optimizer.step")]
    zeroed = [one for one in marks if one["name"].startswith("Optimizer.zero_grad")]
    idle_in = []
    for number, fetch in enumerate(fetches):
        span: Interval = (fetch["start"], fetch["end"])
        idle_in.append(span[1] - span[0] - length(within(busy, span)))
        following = fetches[number + 1]["start"] if number + 1 < len(fetches) else busy[-1][1]
        work = within(busy, (span[1], following))
        print(
            f"batch {number}: fetched at {ms(span[0] - zero)}, took {ms(span[1] - span[0])}, device idle in it "
            f"{ms(idle_in[-1])}; then {ms(following - span[1])} with {ms(length(work))} busy"
        )
    print(
        f"fetches but the first: {ms(sum(one['end'] - one['start'] for one in fetches[1:]))}, "
        f"device idle in them {ms(sum(idle_in[1:]))}; in the first {ms(idle_in[0])}"
    )
    # Batches are handed out in order; of four workers every fourth batch comes from the same one.
    for worker in range(4):
        ready = [one["end"] for one in fetches[worker::4]]
        between = [ms(b - a) for a, b in pairwise(ready)]
        print(f"batches {worker}, {worker + 4}, ...: handed out {between} apart")
    chain = fetches[29]["end"] - fetches[1]["end"]
    print(f"batch 1 to batch 29, seven batches of one worker after it: {ms(chain)}")
    print(f"after the last fetch, to the end of the device's work: {ms(busy[-1][1] - fetches[-1]['end'])}")
    print(f"first update: {ms(zeroed[0]['start'] - zero)} to {ms(updates[0]['end'] - zero)}")
    later = fetches[1]["start"]
    span_later: Interval = (later, busy[-1][1])
    print(
        f"from the second fetch: {ms(span_later[1] - later)}, 29 batches, busy {ms(length(within(busy, span_later)))}"
    )
    for name in (
        "cudaFree",
        "cudaStreamCreateWithFlags",
        "cudaMalloc",
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
    ):
        calls = [one for one in events if one["name"] == name]
        after = sum(one["end"] - one["start"] for one in calls if one["start"] > later)
        print(
            f"{name}: {len(calls)}, {ms(sum(one['end'] - one['start'] for one in calls))}, from the second fetch "
            f"{ms(after)}"
        )
    copies = [one for one in device if "Pageable" in one["name"] and int(one["args"]["bytes"]) > 1 << 20]
    took = sum(one["end"] - one["start"] for one in copies)
    size = int(copies[0]["args"]["bytes"])
    rate = size * len(copies) / took
    print(f"batches copied from pageable memory: {len(copies)} of {size} bytes, {ms(took)}, {rate:.2f} GB/s")
    print(f"the last of them: {ms(copies[-1]['end'] - copies[-1]['start'])}")
    unrecorded = [
        min(one["start"] for one in events if one["start"] >= fetch["end"] and category(one) == "cpu_op") - fetch["end"]
        for fetch in fetches
    ]
    print(f"from a fetch to the next operator: {sorted(round(one / 1e6, 1) for one in unrecorded)} ms")
    kinds: Counter[str] = Counter()
    for one in device:
        kind = "float32 product or convolution" if any(text in one["name"] for text in FLOAT32) else "other"
        kinds[kind if category(one) == "kernel" else category(one)] += one["end"] - one["start"]
        if kind != "other" and one["start"] > fetches[-1]["end"]:
            kinds["float32 product or convolution after the last fetch"] += one["end"] - one["start"]
    for kind, total in kinds.most_common():
        print(f"{kind}: {ms(total)}")
    fills = [one for one in device if "FillFunctor" in one["name"]]
    print(f"fills: {len(fills)}, {ms(sum(one['end'] - one['start'] for one in fills))}")
    kernels = sorted(one["end"] - one["start"] for one in device if category(one) == "kernel")
    print(f"kernels: {len(kernels)}, median {kernels[len(kernels) // 2]} ns")


if __name__ == "__main__":
    main(sys.argv[1])
