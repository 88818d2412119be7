"""ResNet-18 with activation checkpointing on MI300X, rank 0 of 8: `python mi300_resnet.py TRACE`."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from itertools import pairwise

from raw_trace import Event, Interval, category, complete_events, length, on_device, union, within


def kernel_class(name: str) -> str:
    """What kind of work it is."""
    classes = (
        ("collective", ("nccl",)),
        ("layout", ("batched_transpose", "NCHW2CNHW", "CNHW2NCHW")),
        ("copy", ("Memcpy",)),
        ("set", ("Memset",)),
        ("cast or scale (MIOpen SubTensorOp)", ("SubTensorOp",)),
        ("convolution or product", ("igemm", "gemm", "conv_fwd", "Cijk")),
        ("batch norm", ("batch_norm",)),
        ("elementwise", ("elementwise",)),
    )
    return next((kind for kind, texts in classes if any(text in name for text in texts)), "other")


def ms(time_ns: float) -> str:
    """In ms with three places."""
    return f"{time_ns / 1e6:.3f} ms"


def callers(launch: Event, operators: dict[int, list[Event]]) -> list[str]:
    """Operators around a launch, outermost first."""
    around = operators[launch["tid"]]
    return [str(one["name"]) for one in around if one["start"] <= launch["start"] and one["end"] >= launch["end"]]


def purpose(names: list[str]) -> str:
    """Which part of the step launched it."""
    if any("copy_bucket_to_grad" in name for name in names):
        return "bucket copied back to gradients"
    if any(name == "DistributedDataParallel.forward" for name in names) and names[-1] == "aten::copy_":
        return "buffers copied after their broadcast"
    if any("recompute_fn" in name for name in names):
        return "recomputed forward"
    return "else"


def main(path: str) -> None:
    """Print the figures of the reading."""
    events = complete_events(path)
    zero = events[0]["start"]
    device = on_device(events)
    steps = [one for one in events if category(one) == "user_annotation" and one["name"].startswith("ProfilerStep")]
    for one, following in pairwise(steps):
        print(f"host step {one['name']}: {ms(following['start'] - one['start'])} to the next")
    print(f"host step {steps[-1]['name']}: {ms(steps[-1]['end'] - steps[-1]['start'])}")
    print(f"Python calls in the file: {sum(category(one) == 'python_function' for one in events)}")
    # A step on the device ends with the optimizer's last kernel.
    ends = [one["end"] for one in device if "multi_tensor_apply" in one["name"]]
    count = len(ends) - 1
    window: Interval = (ends[0], ends[-1])
    print(f"device steps: {[ms(b - a) for a, b in pairwise(ends)]}")
    print(f"device step, mean of {count}: {(window[1] - window[0]) // count} ns")
    print(f"host's last step ends {ms(steps[-1]['end'] - zero)}, the device's {ms(ends[-1] - zero)}")
    busy = union((one["start"], one["end"]) for one in device)
    print(f"device busy in the device steps: {length(within(busy, window)) / (window[1] - window[0]):.4f}")
    gaps = sorted((b[0] - a[1] for a, b in pairwise(busy) if a[1] >= window[0]), reverse=True)
    print(f"largest idle gaps in them: {[ms(gap) for gap in gaps[:3]]}")
    collectives = [one for one in device if "nccl" in one["name"]]
    on_network = union((one["start"], one["end"]) for one in collectives)
    computing = union((one["start"], one["end"]) for one in device if "nccl" not in one["name"])
    exposed = length(within(on_network, window))
    exposed -= sum(length(within(computing, one)) for one in within(on_network, window))
    print(
        f"per device step: collectives {ms(length(within(on_network, window)) / count)}, exposed {ms(exposed / count)}"
    )
    print(f"per device step: something computes {ms(length(within(computing, window)) / count)}")
    for one in collectives:
        args, took = one["args"], one["end"] - one["start"]
        hidden = length(within(computing, (one["start"], one["end"])))
        line = f"{args.get('Collective name', '?')} at {ms(one['start'] - zero)}: {ms(took)}, hidden {ms(hidden)}"
        if "In msg nelems" in args:
            size = int(args["In msg nelems"]) * {"BFloat16": 2, "Long": 8}[args["dtype"]]
            factor = 2 * (8 - 1) / 8 if args["Collective name"] == "allreduce" else 1
            line += f", {size} bytes, bus bandwidth {size * factor / took:.2f} GB/s"
        print(line)
    loss = [one["start"] for one in device if "mse_backward" in one["name"] and one["start"] > window[0]]
    for start in loss:
        first, second = [one for one in collectives if one["start"] > start][:2]
        print(
            f"backward begins {ms(first['start'] - start)} before all-reduce 1; 2 follows it by "
            f"{ms(second['start'] - first['end'])}"
        )
    time: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for one in within_window(device, window):
        kind = kernel_class(one["name"])
        number[kind] += 1
        time[kind] += one["end"] - one["start"]
        alone[kind] += one["end"] - one["start"] - length(within(on_network, (one["start"], one["end"])))
    for kind, took in time.most_common():
        print(
            f"per device step: {number[kind] / count:.0f} {kind} {ms(took / count)}, not under a collective "
            f"{ms(alone[kind] / count)}"
        )
    launches = {
        one["args"]["correlation"]: one
        for one in events
        if category(one) == "cuda_runtime" and "correlation" in one.get("args", {})
    }
    print(
        f"launching calls per host step: {sum('Launch' in one['name'] for one in launches.values()) / len(steps):.0f}"
    )
    operators: dict[int, list[Event]] = defaultdict(list)
    for one in events:
        if category(one) in {"cpu_op", "user_annotation"} or "recompute_fn" in one["name"]:
            operators[one["tid"]].append(one)
    by_purpose: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in device:
        launch = launches.get(one["args"].get("correlation"))
        if launch is not None and "nccl" not in one["name"]:
            row = by_purpose[purpose(callers(launch, operators))]
            row[0] += 1
            row[1] += one["end"] - one["start"]
            row[2] += one["end"] - one["start"] - length(within(on_network, (one["start"], one["end"])))
    for text, row in by_purpose.items():  # the launches of the three host steps
        print(f"per step: {text}: {row[0] / 3:.0f} of {ms(row[1] / 3)}, not under a collective {ms(row[2] / 3)}")
    for one in events:
        if "Synchronize" in one["name"] and category(one) == "cuda_runtime":
            print(f"{one['name']} at {ms(one['start'] - zero)}: {ms(one['end'] - one['start'])}, after the last step")


def within_window(events: list[Event], window: Interval) -> list[Event]:
    """Those that begin in it."""
    return [one for one in events if window[0] <= one["start"] < window[1]]


if __name__ == "__main__":
    main(sys.argv[1])
