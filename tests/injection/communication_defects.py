"""Defects of what ranks send each other."""

from __future__ import annotations

from injection.block import LEAD_NS, US, Block
from injection.sites import Base

from tightship_analyzers.hardware import find
from tightship_analyzers.rules.communication import low_bus_bandwidth

KERNELS = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    "void rcclKernel_AllGather_RING(ncclWorkElem)",
    "mscclpp::allreduce_kernel",
)
ALL_REDUCES = KERNELS[:2]
OPS = ("c10d::allreduce_", "c10d::_reduce_scatter_base_", "c10d::_allgather_base_", "nccl:all_reduce")


def exposed(block: Block, base: Base) -> int:
    """One collective or a few, one after the other."""
    count = block.rng.choice((1, 2, 3))
    each = block.length_ns // count
    stream = base.stream + block.rng.choice((13, 90))
    for at in range(count):
        block.launched(block.any_of(*OPS), at * each, (at + 1) * each, block.any_of(*KERNELS), stream=stream)
    block.wait()
    return count * (each - LEAD_NS)


def collective(elements: int, ranks: int = 8) -> dict[str, object]:
    """What torch records with a collective."""
    return {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements} | {
        "Group size": ranks, "Process Group Name": "0"}  # fmt: skip


def tiny(block: Block, base: Base) -> int:
    """Some small ones, each of another size."""
    count = block.rng.randrange(14, 30)
    each = block.length_ns // count
    kernel, stream = block.any_of(*ALL_REDUCES), base.stream + 90
    for at in range(count):
        size = block.rng.randrange(10, 200_000)
        block.launched("c10d::allreduce_", at * each, (at + 1) * each, kernel, stream=stream, **collective(size))
    block.wait()
    return (count - 1) * (each - LEAD_NS)


def bucketed(block: Block, base: Base) -> int:
    """Gradients copied out of DistributedDataParallel's buckets, one by one."""
    count = block.rng.randrange(4, 12)
    each, call_ns = block.length_ns // count, 5 * US
    for at in range(count):
        begun = at * call_ns
        block.op("torch.distributed.ddp.reducer::copy_bucket_to_grad", begun, begun + call_ns - 100)
        block.launched(
            "aten::copy_", at * each, (at + 1) * each, "Memcpy DtoD (Device -> Device)", at_ns=begun + 100,
            category="gpu_memcpy", call="cudaMemcpyAsync", bytes=block.rng.randrange(1 << 16, 1 << 22),
        )  # fmt: skip
    block.wait()
    return count * (each - LEAD_NS)


def slow_link(block: Block, base: Base) -> int:
    """Sent at a small part of the link's rate."""
    device = find(base.device_name)
    assert device is not None
    rate = next(
        device.link_bytes_per_s[kind] for kind in low_bus_bandwidth.MACHINE_LINKS if kind in device.link_bytes_per_s
    )
    took, used, ranks = (
        block.length_ns - LEAD_NS,
        low_bus_bandwidth.LOW_FRAC * block.rng.uniform(0.3, 0.9),
        block.rng.choice((4, 8)),
    )
    elements = int(took / 1e9 * used * rate / (2 * (ranks - 1) / ranks) / 4)
    block.group("0", list(range(ranks)))
    block.launched(
        "c10d::allreduce_", 0, block.length_ns, block.any_of(*ALL_REDUCES), stream=base.stream + 90,
        **collective(elements, ranks),
    )  # fmt: skip
    block.wait()
    return round(took * (1 - used / low_bus_bandwidth.GOOD_FRAC))


def late(block: Block, base: Base, late_ns: int, takes_ns: int) -> None:
    """A collective at which this rank arrives after `late_ns`, and which then takes so long."""
    if late_ns > 2 * US:
        block.op("aten::prepare", 0, late_ns - US)
    block.launched(
        "c10d::allreduce_", late_ns, late_ns + takes_ns, ALL_REDUCES[0], at_ns=late_ns, stream=base.stream + 90,
        **collective(1 << 22),
    )  # fmt: skip
    block.wait()
