"""What this machine can do: links, memory, CPU Adam by threads, arithmetic. Measured in its own process.

python -m tightship_analyzers.offload_planner.rates     # YAML on stdout

Without an accelerator the same functions measure host memory in the role of the device, and say so: `device: cpu`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any

import yaml

from tightship_offload.plan.capabilities import update_threads
from tightship_offload.plan.host_limits import cores, read_host_limits
from tightship_offload.plan.model import HardwareSpec
from tightship_platform.errors import TightshipError

COPY_BYTES = 128 * 2**20
"""A layer of a large model; small copies are dominated by their start. Less where memory is short."""
ADAM_PARAMETERS = 16_000_000
"""4 × 64 MB: more than any cache. Fewer where memory is short."""
NEEDED_BYTES = 2**30
"""For buffers of those sizes, and torch."""
MOST_SHRUNK = 16
MATRIX = 2048
REPEATS = 5
TIMEOUT_S = 300


class CannotMeasure(TightshipError):
    """The measuring process failed."""


def measure_rates() -> HardwareSpec:
    """Measure this machine, in a child process: it takes memory and threads that the caller keeps for itself.

    :raises CannotMeasure: torch is missing, or the child failed.
    """
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=os.environ | {"OMP_NUM_THREADS": str(cores())},
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"Measuring this machine took more than {TIMEOUT_S} s; try when it is less busy") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
        raise CannotMeasure(
            f"Measuring this machine failed ({last}); it needs tightship[offload] and 1 GiB of free memory"
        )
    return HardwareSpec.from_mapping(yaml.safe_load(done.stdout), "hardware")


@cache
def shrink() -> int:
    """By what buffers are smaller than where memory is ample: a power of 2."""
    usable = read_host_limits().usable
    found = 1
    while usable is not None and usable * found < NEEDED_BYTES and found < MOST_SHRUNK:
        found *= 2
    return found


def hardware() -> HardwareSpec:
    """The figures of this machine, measured in this process."""
    import torch

    limits = read_host_limits()
    host_bytes = limits.capacity or 0
    on_gpu = torch.cuda.is_available()
    links = _gpu_links() if on_gpu else _cpu_links()
    threads = update_threads(cores(), on_cpu=not on_gpu)
    rates = {count: _adam_rate("cpu", count) for count in _thread_counts(threads)}
    torch.set_num_threads(threads)
    master_rate = _master_adam_rate()
    loop_rate = _adam_rate("cpu", None, fused=False)
    torch.set_num_threads(cores())
    return HardwareSpec(
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        device_bytes=int(torch.cuda.mem_get_info()[1]) if on_gpu else host_bytes,
        host_bytes=host_bytes,
        cores=cores(),
        **links,
        adam_params_per_s=rates,
        master_adam_params_per_s=master_rate,
        loop_adam_params_per_s=loop_rate,
        norm_bytes_per_s=_norm_rate(),
        device_adam_params_per_s=_adam_rate("cuda", None) if on_gpu else None,
        flops_per_s=_flops("cuda" if on_gpu else "cpu"),
    )


def _gpu_links() -> dict[str, float]:
    import torch

    copy_bytes = COPY_BYTES // shrink()
    host = [torch.empty(copy_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(copy_bytes, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]

    def copies(directions: tuple[int, ...]) -> list[float]:
        """Bytes per second in each direction; 8 copies each, timed on their streams."""
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in directions]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        for direction, (begin, end) in zip(directions, marks, strict=True):
            with torch.cuda.stream(streams[direction]):
                begin.record()
                for _ in range(8):
                    if direction == 0:
                        device[0].copy_(host[0], non_blocking=True)
                    else:
                        host[1].copy_(device[1], non_blocking=True)
                end.record()
        torch.cuda.synchronize()
        return [8 * copy_bytes / (begin.elapsed_time(end) / 1e3) for begin, end in marks]

    copies((0, 1))
    both = copies((0, 1))
    return {
        "h2d_bytes_per_s": median(copies((0,))[0] for _ in range(REPEATS)),
        "d2h_bytes_per_s": median(copies((1,))[0] for _ in range(REPEATS)),
        "h2d_duplex_bytes_per_s": both[0],
        "d2h_duplex_bytes_per_s": both[1],
    }


def _cpu_links() -> dict[str, float]:
    """Copies within host memory, by one thread each way, as the CPU backend makes them."""
    import torch

    torch.set_num_threads(1)
    copy_bytes = COPY_BYTES // shrink()
    pairs = [[torch.zeros(copy_bytes, dtype=torch.uint8) for _ in range(2)] for _ in range(2)]

    def rate(pair: list[Any]) -> float:
        return copy_bytes / _seconds(lambda: pair[0].copy_(pair[1]))

    alone = rate(pairs[0])
    duplex = [0.0, 0.0]

    def run(at: int) -> None:
        torch.set_num_threads(1)
        duplex[at] = rate(pairs[at])

    threads = [threading.Thread(target=run, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "h2d_bytes_per_s": alone,
        "d2h_bytes_per_s": alone,
        "h2d_duplex_bytes_per_s": min(alone, duplex[0]),
        "d2h_duplex_bytes_per_s": min(alone, duplex[1]),
    }


def _thread_counts(default: int) -> list[int]:
    """Doubling, up to all; among them what the runtime takes by itself."""
    most = cores()
    counts = {1, default, most}
    count = 1
    while (count := 2 * count) < most:
        counts.add(count)
    return sorted(counts)


def _adam_rate(device: str, threads: int | None, *, fused: bool | None = True) -> float:
    """Parameters per second of torch's AdamW in fp32."""
    import torch

    adam_parameters = ADAM_PARAMETERS // shrink()
    if threads is not None:
        torch.set_num_threads(threads)
    weights = torch.nn.Parameter(torch.zeros(adam_parameters, device=device))
    weights.grad = torch.full_like(weights, 1e-3)
    optimizer = torch.optim.AdamW([weights], fused=fused)
    optimizer.step()
    return adam_parameters / _seconds(optimizer.step, device)


def _master_adam_rate() -> float:
    """Parameters per second of bf16 weights with fp32 masters: the runtime's own updates of two layers."""
    import torch

    import tightship_offload as offload
    from tightship_offload.backends.cpu import CpuBackend

    width = 2048
    layers = (torch.nn.Linear(width, ADAM_PARAMETERS // shrink() // 2 // width, bias=False) for _ in range(2))
    model = torch.nn.Sequential(torch.nn.Sequential(*layers)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    offload.apply(model, optimizer, layers="0.*", window=2, master=True, backend=CpuBackend())
    engine = offload.engine_of(model)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)

    def step() -> None:
        optimizer.step()
        engine.drain()

    step()  # makes the optimizer's state
    spent_s = _seconds(step)
    engine.remove()
    return sum(parameter.numel() for parameter in parameters) / spent_s


def _norm_rate() -> float:
    """Bytes per second of bf16 gradients in host memory."""
    import torch

    from tightship_offload.runtime.norms import total_norm

    copy_bytes = COPY_BYTES // shrink()
    gradients = [torch.full((copy_bytes // 2,), 1e-3, dtype=torch.bfloat16)]

    def norm() -> None:
        if total_norm(gradients) is None:
            torch.nn.utils.get_total_norm(gradients)

    return copy_bytes / _seconds(norm)


def _flops(device: str) -> float:
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    size = 4 * MATRIX if device == "cuda" else MATRIX
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / _seconds(lambda: torch.mm(a, b), device)


def _seconds(work: Callable[[], Any], device: str = "cpu") -> float:
    """The median time of a call."""
    import torch

    work()
    spent = []
    for _ in range(REPEATS):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - begin)
    return median(spent)


if __name__ == "__main__":
    yaml.safe_dump(hardware().as_mapping(), sys.stdout, sort_keys=False)
