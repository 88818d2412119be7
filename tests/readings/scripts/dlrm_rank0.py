"""One step of a DLRM with sharded embeddings on 8 V100: `python dlrm_rank0.py TRACE [OTHER_RANK...]`.

The first trace is the one that is read; with others, when all of them arrive at each collective.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from itertools import pairwise

from raw_trace import Event, Interval, category, complete_events, length, on_device, union, within

OPTIMIZER = "Optimizer.step"
LOADER = "DataLoader"


def ms(time_ns: float) -> str:
    """In ms with three places."""
    return f"{time_ns / 1e6:.3f} ms"


def recorded(path: str) -> list[Event]:
    """The file's events without the mark of the whole recording."""
    return [one for one in complete_events(path) if category(one) != "trace"]


def marked(events: list[Event], text: str) -> Interval:
    """The host's first range of that name."""
    found = next(one for one in events if category(one) == "user_annotation" and text in one["name"])
    return found["start"], found["end"]


def ranks(paths: list[str]) -> None:
    """Arrival of each rank at each collective, on the machine's common clock."""
    rows = []
    for path in paths:
        events = recorded(path)
        kernels = [one for one in on_device(events) if "nccl" in one["name"]]
        rows.append((path.rsplit("/", 1)[-1].split("_")[0], marked(events, "ProfilerStep"), kernels))
    zero = min(step[0] for _, step, _ in rows)
    for name, step, kernels in rows:
        print(
            f"{name}: step from {ms(step[0] - zero)} to {ms(step[1] - zero)}, collectives begin "
            f"{[round((one['start'] - zero) / 1e6, 2) for one in kernels]}"
        )
    least = [min(one["end"] - one["start"] for one in calls) for calls in zip(*(row[2] for row in rows), strict=True)]
    print(f"shortest of all ranks per collective: {[ms(one) for one in least]}, together {ms(sum(least))}")


def main(paths: list[str]) -> None:
    """Print the figures of the reading."""
    events = recorded(paths[0])
    step = marked(events, "ProfilerStep")
    device = on_device(events)
    busy = union((one["start"], one["end"]) for one in device)
    network = union((one["start"], one["end"]) for one in device if "nccl" in one["name"])
    computing = union((one["start"], one["end"]) for one in device if "nccl" not in one["name"])
    print(f"step on the host: {step[1] - step[0]} ns; the device ends {ms(busy[-1][1] - step[1])} after it")
    print(
        f"device busy {ms(length(within(busy, step)))}, idle {ms(step[1] - step[0] - length(within(busy, step)))}; "
        f"collectives {ms(length(network))}, something else {ms(length(computing))}"
    )
    print(f"collectives while nothing else runs: {ms(length(busy) - length(computing))}")
    sizes = {"all_to_all": 4, "all_reduce": 4}
    calls = [one for one in events if one["name"].startswith("nccl:") and category(one) == "user_annotation"]
    for call, kernel in zip(calls, (one for one in device if "nccl" in one["name"]), strict=True):
        elements = max(dims[0] for dims in call["args"]["Input Dims"])
        print(
            f"{call['name']} at {ms(kernel['start'] - step[0])}: {elements * sizes[call['name'][5:]]} bytes at most, "
            f"{ms(kernel['end'] - kernel['start'])}"
        )
    kernels = [one for one in device if category(one) == "kernel" and "nccl" not in one["name"]]
    took = sorted(one["end"] - one["start"] for one in kernels)
    print(f"kernels without collectives: {len(took)}, median {took[len(took) // 2]} ns")
    fp32 = sum(one["end"] - one["start"] for one in kernels if "gemm" in one["name"])
    print(f"float32 products: {ms(fp32)}")
    launches = {
        one["args"]["correlation"]: one
        for one in events
        if category(one) == "cuda_runtime" and "correlation" in one.get("args", {})
    }
    loader, update = marked(events, LOADER), marked(events, OPTIMIZER)
    by_host: Counter[str] = Counter()
    number: Counter[str] = Counter()
    latest = step[0]
    for one in device:
        gap = one["start"] - latest
        launch = launches.get(one["args"].get("correlation"))
        if gap > 0:
            late = launch is not None and launch["start"] >= latest
            place = "in the optimizer" if update[0] < one["start"] < update[1] else "elsewhere"
            place = "that begins with the step" if latest == step[0] else place
            kind = f"gap {place}, {'launched' if late else 'not launched'} after it began"
            by_host[kind] += gap
            number[kind] += 1
        latest = max(latest, one["end"])
    for kind, total in by_host.items():
        print(f"{number[kind]} {kind}: {ms(total)}")
    print(f"loader: {ms(loader[1] - loader[0])}, busy in it {ms(length(within(busy, loader)))}")
    waits = sorted(((b[0] - a[1], a[1] - step[0]) for a, b in pairwise(busy)), reverse=True)[:4]
    print(f"largest gaps between device events: {[f'{ms(gap)} at {ms(start)}' for gap, start in waits]}")
    last_collective = network[-1][1]
    print(
        f"optimizer: {ms(update[1] - update[0])} on the host; from the last collective to the device's end "
        f"{ms(busy[-1][1] - last_collective)}"
    )
    in_update = [
        one
        for one in kernels
        if (launch := launches.get(one["args"].get("correlation"))) is not None
        and update[0] <= launch["start"] <= update[1]
    ]
    print(f"kernels of the optimizer: {len(in_update)}, {ms(sum(one['end'] - one['start'] for one in in_update))}")
    operators: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in events:
        if category(one) == "cpu_op":
            operators[one["name"]][0] += 1
            operators[one["name"]][1] += one["end"] - one["start"]
    for name in ("aten::index", "aten::item", "aten::nonzero"):
        print(f"{name}: {operators[name][0]}, {ms(operators[name][1])} on the host")
    print(f"launching calls: {sum('Launch' in one['name'] for one in launches.values())}")
    for one in device:
        if "Memcpy" in one["name"] and "Pageable" in one["name"]:
            copied = launches[one["args"]["correlation"]]
            wait = next(
                two
                for two in events
                if two["name"] == "cudaStreamSynchronize"
                and two["start"] > copied["start"]
                and two["tid"] == copied["tid"]
            )
            print(
                f"{one['name']}, {one['args']['bytes']} bytes: call {ms(copied['end'] - copied['start'])}, then "
                f"synchronize {ms(wait['end'] - wait['start'])}"
            )
    chain: list[Event] = []
    for one in [*kernels, {"name": ""}]:
        if "elementwise" in one["name"]:
            chain.append(one)
            continue
        if len(chain) >= 4:
            print(
                f"{len(chain)} elementwise kernels in a row at {ms(chain[0]['start'] - step[0])}: "
                f"{ms(sum(two['end'] - two['start'] for two in chain))} in {ms(chain[-1]['end'] - chain[0]['start'])}"
            )
        chain = []
    if len(paths) > 1:
        ranks(paths)


if __name__ == "__main__":
    main(sys.argv[1:])
