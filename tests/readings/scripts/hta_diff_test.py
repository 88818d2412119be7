"""Figures of the reading hta_diff_test: the same kind of model on V100s, compiled, with CUDA graphs."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from itertools import pairwise

from raw_trace import Event, Interval, category, complete_events, length, load, on_device, union, within

CLASSES = (
    ("communication", ("nccl",)),
    ("copy from host", ("HtoD",)),
    ("copy on device", ("DtoD",)),
    ("embedding", ("split_embedding",)),
    ("float32 product without tensor cores", ("ampere_sgemm", "volta_sgemm")),
    ("product on tensor cores, unaligned", ("align1", "align2")),
    ("product, other", ("gemm", "splitKreduce")),
    ("elementwise", ("elementwise_kernel",)),
    ("reduce", ("reduce_kernel",)),
    ("concatenate", ("CatArray",)),
)


def show(label: str, *values: object) -> None:
    """One labelled line."""
    sys.stdout.write(f"{label}: {' '.join(map(str, values))}\n")


def ms(time_ns: float) -> str:
    """Nanoseconds, shown in milliseconds."""
    return f"{time_ns / 1e6:.3f} ms"


def took(event: Event) -> int:
    """Its length in ns."""
    return int(event["end"] - event["start"])


def spans(events: list[Event]) -> list[Interval]:
    """When one of them runs."""
    return union((event["start"], event["end"]) for event in events)


def kind(event: Event) -> str:
    """Its class by name."""
    for name, parts in CLASSES:
        if any(part in event["name"] for part in parts):
            return name
    return "other"


def idle_by_launch(device: list[Event], launches: dict[int, Event], steps: int) -> None:
    """Gaps by what the host did about the kernel that ends them."""
    starts = [event["start"] for event in device]
    total: Counter[str] = Counter()
    for before, after in pairwise(spans(device)):
        call = launches.get(device[bisect_left(starts, after[0])]["args"]["correlation"])
        late = call is not None and call["start"] >= before[1]
        long = "above 1 ms" if after[0] - before[1] > 1_000_000 else "up to 1 ms"
        total[f"{'launched late' if late else 'launched before'}, {long}"] += after[0] - before[1]
    for name, time in total.most_common():
        show(f"idle a step, {name}", ms(time / steps))


def graph_copies(events: list[Event], device: list[Event], launches: dict[int, Event], steps: int) -> None:
    """Copies on the device by the compiled function that made them."""
    rows: dict[str, list[int]] = {}
    compiled = [event for event in events if event["name"] in ("CompiledFunction", "CompiledFunctionBackward")]
    for event in device:
        call = launches.get(event["args"]["correlation"])
        if "DtoD" in event["name"] and call is not None:
            over = [e for e in compiled if e["tid"] == call["tid"] and e["start"] <= call["start"] < e["end"]]
            row = rows.setdefault(over[0]["name"] if over else "elsewhere", [0, 0, 0])
            for index, value in enumerate((1, took(event), int(event["args"]["bytes"]))):
                row[index] += value
    for name, (count, time, size) in rows.items():
        show(f"copies on the device in {name}, a step", count // steps, ms(time / steps), size // steps, "bytes")


def blocked(events: list[Event], calls: list[Event], covered: list[Interval], steps: int) -> None:
    """Copies that hold the host for more than 0.2 ms, and the idle time in them and in the 2 ms after."""
    rows: dict[str, list[int]] = {}
    for call in calls:
        if took(call) > 200_000 and ("Memcpy" in call["name"] or "Sync" in call["name"]):
            over = [
                e for e in events if e["tid"] == call["tid"] and e["start"] <= call["start"] < call["end"] <= e["end"]
            ]
            names = [str(e["name"]) for e in over if category(e) in ("user_annotation", "cpu_op")][1:4]
            row = rows.setdefault(" > ".join(names) or "none", [0, 0, 0, 0])
            inside = length(within(covered, (call["start"], call["end"])))
            after = length(within(covered, (call["end"], call["end"] + 2_000_000)))
            for index, value in enumerate((1, took(call), took(call) - inside, 2_000_000 - after)):
                row[index] += value
    for name, (count, time, idle, after) in rows.items():
        show(
            f"blocked in {name}", count, ms(time / steps), "idle", ms(idle / steps), "in 2 ms after", ms(after / steps)
        )


def main(path: str) -> None:
    """Prints all of them."""
    content = load(path)
    show("device", content["deviceProperties"][0]["name"], content["distributedInfo"])
    events = complete_events(path)
    device = on_device(events)
    calls = [event for event in events if category(event) == "cuda_runtime"]
    launches = {event["args"]["correlation"]: event for event in calls if "correlation" in event["args"]}
    marks = [event for event in events if str(event["name"]).startswith("ProfilerStep#")]
    steps, zero, covered = len(marks), events[0]["start"], spans(device)
    show("device events without launch", sum(event["args"]["correlation"] not in launches for event in device))
    for mark in marks:
        pairs = [(e, launches[e["args"]["correlation"]]) for e in device if e["args"]["correlation"] in launches]
        pairs = [(event, call) for event, call in pairs if mark["start"] <= call["start"] < mark["end"]]
        lag = sorted(event["start"] - call["end"] for event, call in pairs)
        inside = length(within(covered, (mark["start"], mark["end"])))
        show(mark["name"], "host", ms(took(mark)), "busy in it", ms(inside), "device events", len(pairs))
        ends = [ms(time - zero) for time in (pairs[0][0]["start"], max(event["end"] for event, _ in pairs))]
        show("  on the device", *ends, "behind launch: median", ms(lag[len(lag) // 2]), "most", ms(lag[-1]))
    early = [event for event in device if event["args"]["correlation"] not in launches]
    show("busy with events without launch", ms(length(spans(early))), "first ends", ms(early[-1]["end"] - zero))
    show("whole file: busy", ms(length(covered)), "of", ms(covered[-1][1] - covered[0][0]))
    forward = [e["start"] for e in device if "embedding_codegen_forward" in e["name"] and took(e) > 2_000_000]
    show("device steps, from embedding forward to the next", [ms(b - a) for a, b in pairwise(forward)])
    device = [event for event in device if forward[0] <= event["start"] < forward[-1]]
    calls = [call for call in calls if forward[0] <= call["start"] < call["end"] < forward[-1]]
    steps, covered = len(forward) - 1, within(covered, (forward[0], forward[-1] + 2_000_000))
    show("step on the device, ns", (forward[-1] - forward[0]) // steps, "; all below are of these", steps, "steps")
    inside = length(within(covered, (forward[0], forward[-1])))
    show("busy", f"{inside / (forward[-1] - forward[0]):.4f}", ms(inside / steps), "a step")
    idle_by_launch(device, launches, steps)

    other = spans([event for event in device if "nccl" not in event["name"]])
    sent = [event for event in device if "nccl" in event["name"]]
    open_ns = sum(length([part]) - length(within(other, part)) for part in spans(sent))
    show("communication a step", ms(length(spans(sent)) / steps), "exposed", ms(open_ns / steps))
    for mark in marks:
        known = [event for event in sent if event["args"]["correlation"] in launches]
        own = [e for e in known if mark["start"] <= launches[e["args"]["correlation"]]["start"] < mark["end"]]
        parts = [
            (e["name"][11:18], ms(took(e)), ms(took(e) - length(within(other, (e["start"], e["end"]))))) for e in own
        ]
        show(f"  {mark['name']} collectives (length, exposed)", *parts)
    show("  arguments of a collective", next(e["args"] for e in events if e["name"] == "record_param_comms"))

    time: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in device:
        name = kind(event)
        name += " up to 20 us" if name == "elementwise" and took(event) <= 20_000 else ""
        time[name] += took(event)
        count[name] += 1
    for name, total in time.most_common():
        show(f"device time a step, {name}", ms(total / steps), "in", count[name] // steps)
    kernels = sorted((event for event in device if category(event) == "kernel"), key=took)
    show("kernels a step", len(kernels) // steps, "median, ns", took(kernels[len(kernels) // 2]))
    graph_copies(events, device, launches, steps)
    graphs = [call for call in calls if call["name"] == "cudaGraphLaunch"]
    nodes = sum(e["args"]["correlation"] in {call["args"]["correlation"] for call in graphs} for e in device)
    show("graph launches", len(graphs), ms(sum(map(took, graphs)) / steps), "a step, their device events", nodes)
    for part in ("backward_codegen_rowwise_adagrad_unweighted_kernel_cta", "kernel_warp_per_row", "codegen_forward"):
        show(
            f"embedding a step, {part[-20:]}", ms(sum(took(event) for event in device if part in event["name"]) / steps)
        )
    show("largest gap", ms(max(after[0] - before[1] for before, after in pairwise(covered))))
    longest = [event for event in kernels if "cta_per_row" in event["name"]]
    show("embedding backward, long rows", len(longest), {ms(took(e)) for e in longest}, longest[0]["args"]["grid"])
    largest = max((e for e in device if "HtoD" in e["name"]), key=took)
    show("largest copy from host", largest["args"]["bytes"], ms(took(largest)), largest["name"])
    blocked(events, calls, covered, steps)


if __name__ == "__main__":
    main(sys.argv[1])
