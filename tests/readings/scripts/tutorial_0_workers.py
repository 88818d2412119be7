"""ResNet-50 of PyTorch's profiler tutorial, six steps, oldest category names: `python tutorial_0_workers.py TRACE`."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from statistics import mean, median

from raw_trace import Event, Interval, category, complete_events, length, on_device, union, within

FLOAT32 = ("sgemm", "scudnn", "winograd", "dgrad_engine", "wgrad_alg", "im2col")
PHASES = ("fetch", "copy and forward", "zero_grad", "backward", "optimizer", "rest")


def ms(time_ns: float) -> str:
    """In ms with two places."""
    return f"{time_ns / 1e6:.2f} ms"


def inside(events: list[Event], text: str, window: Interval) -> Event:
    """The host's event of that name in the window."""
    return next(one for one in events if text in one["name"] and window[0] <= one["start"] < window[1])


def work(device: list[Event], launches: dict[int, Event], span: Interval) -> list[Event]:
    """Device events that were launched in a span of the host."""
    found = []
    for one in device:
        launch = launches.get(one["args"]["correlation"])
        if launch is not None and span[0] <= launch["start"] < span[1]:
            found.append(one)
    return found


def total(events: list[Event]) -> int:
    """Sum of their times."""
    return sum(one["end"] - one["start"] for one in events)


def main(path: str) -> None:
    """Print the figures of the reading."""
    events = [one for one in complete_events(path) if category(one) != "trace"]
    host = [one for one in events if category(one) == "operator"]
    zero = events[0]["start"]
    device = on_device(events)
    busy = union((one["start"], one["end"]) for one in device)
    launches = {one["args"]["correlation"]: one for one in events if category(one) == "runtime"}
    steps = [(one["start"], one["end"]) for one in host if one["name"].startswith("ProfilerStep")]
    lengths = [end - start for start, end in steps]
    print(
        f"steps: {[ms(one) for one in lengths]}, mean {round(mean(lengths))} ns, median {ms(median(lengths))}, "
        f"without the first and the last {ms(mean(lengths[1:-1]))}"
    )
    print(f"device busy {ms(length(busy))} from the first to the last device event {ms(busy[-1][1] - busy[0][0])}")
    print(f"last device event ends {ms(busy[-1][1] - zero)}, last step {ms(steps[-1][1] - zero)}")
    kernel = device[len(device) // 2]["args"]
    blocks, threads = kernel["grid"], kernel["block"]
    warps = blocks[0] * blocks[1] * blocks[2] * threads[0] * threads[1] * threads[2] / 32
    print(f"multiprocessors by grid, block and warps per SM: {warps / float(kernel['warps per SM']):.1f}")
    idle: dict[str, list[int]] = {name: [] for name in PHASES}
    took: dict[str, list[int]] = {name: [] for name in PHASES}
    behind, short, unblocked = [], [], []
    for number, step in enumerate(steps):
        fetch, clear, update = (inside(host, text, step) for text in ("DataLoader", "zero_grad", "Optimizer.step"))
        ends = (step[0], fetch["end"], clear["start"], clear["end"], update["start"], update["end"], step[1])
        for name, start, end in zip(PHASES, ends, ends[1:], strict=False):
            took[name].append(end - start)
            idle[name].append(end - start - length(within(busy, (start, end))))
        copies = [one for one in events if one["name"] == "cudaMemcpyAsync" and step[0] <= one["start"] < step[1]]
        blocked = total(copies)
        on_gpu = work(device, launches, step)
        behind.append(max(one["end"] for one in on_gpu) - update["end"])
        unblocked.append(step[1] - step[0] - blocked)
        gaps = [b[0] - a[1] for a, b in pairwise(busy) if step[0] <= a[1] < step[1]]
        short.append(sum(gap for gap in gaps if gap <= 1_000_000))
        copied = [one for one in on_gpu if "Pageable" in one["name"]]
        print(
            f"step {number}: idle {ms(step[1] - step[0] - length(within(busy, step)))}, gaps up to 1 ms {ms(short[-1])}"
        )
        print(f"  host blocked in copies {ms(blocked)}; copy {copied[0]['args']['bytes']} bytes {ms(total(copied))}")
        print(f"  launched {len(on_gpu)} of {ms(total(on_gpu))}, done {ms(behind[-1])} after the optimizer")
        cleared, updated = (work(device, launches, (one["start"], one["end"])) for one in (clear, update))
        print(
            f"  zero_grad: {len(cleared)} fills of {ms(total(cleared))}; optimizer: {len(updated)} kernels of "
            f"{ms(total(updated))}"
        )
    for name in PHASES:
        print(
            f"{name}: host {ms(mean(took[name]))} ({[ms(one) for one in took[name]]}), device idle "
            f"{ms(mean(idle[name]))} ({[ms(one) for one in idle[name]]})"
        )
    print(
        f"idle per step {ms(sum(mean(idle[name]) for name in PHASES))}, gaps up to 1 ms {ms(mean(short))}, host not "
        f"blocked in copies {ms(mean(unblocked[1:-1]))} without the first and the last"
    )
    first = work(device, launches, (steps[0][0], steps[-1][1]))[0]
    earlier = max(one["end"] for one in device if one["start"] < first["start"])
    print(f"the device runs the step before the first one until {ms(earlier - steps[0][0])} of it")
    kinds: Counter[str] = Counter()
    for one in work(device, launches, (steps[0][0], steps[-1][1])):
        is_float = category(one) == "kernel" and any(text in one["name"] for text in FLOAT32)
        kinds["float32 convolution or product" if is_float else category(one)] += one["end"] - one["start"]
    for kind, sum_ns in kinds.items():
        print(f"{kind}: {ms(sum_ns / len(steps))} per step")
    passes = [one for one in device if "elementwise_kernel" in one["name"] and one["end"] - one["start"] > 20_000]
    print(f"elementwise kernels above 20 us: {len(passes) / len(steps):.0f} a step, {ms(total(passes) / len(steps))}")
    for text in ("Threshold", "threshold", "Add", "add"):
        named = [one for one in passes if text in one["name"]]
        print(f"  with {text} in their name: {len(named) / len(steps):.0f}, {ms(total(named) / len(steps))}")
    kernels = sorted(one["end"] - one["start"] for one in device if category(one) == "kernel")
    print(f"median kernel {kernels[len(kernels) // 2]} ns")
    for name in ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMalloc", "cudaFree"):
        calls = [one for one in events if one["name"] == name]
        print(f"{name}: {len(calls)}, {ms(total(calls))}")


if __name__ == "__main__":
    main(sys.argv[1])
