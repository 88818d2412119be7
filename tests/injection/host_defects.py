"""Defects of the host: it does something else, or waits, while the device has nothing to do."""

from __future__ import annotations

from collections.abc import Callable

from injection.block import HOST_NS, LEAD_NS, US, Block
from injection.sites import Base

Put = Callable[[Block, Base], int]
"""Puts the defect into the whole block and returns its cost, ns."""

MEMCPY = {"category": "gpu_memcpy"}

LOADERS = tuple(
    f"enumerate(DataLoader)#{kind}.__next__"
    for kind in ("_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter", "PrefetchingIter")
)
SAVES = (
    "torch/serialization.py(967): save",
    "torch/serialization.py(1021): _legacy_save",
    "torch/distributed/checkpoint/state_dict_saver.py(170): save",
    "safetensors/torch.py(286): save_file",
    "<built-in function dump>",
    "pickle.py(1570): _dump",
    "joblib/numpy_pickle.py(553): dump",
    "numpy/lib/_npyio_impl.py(638): savez",
)
FLUSHES = (
    "torch/cuda/memory.py(200): empty_cache",
    "torch/accelerator/memory.py(31): empty_cache",
    "<built-in method _cuda_emptyCache of PyCapsule object at 0x7f10>",
)
COLLECTIONS = ("<built-in function collect>", "Python GC", "torchtitan/tools/utils.py(72): collect")
LOGS = (
    "<built-in function print>",
    "logging/__init__.py(1477): info",
    "tqdm/std.py(1325): refresh",
    "torch/utils/tensorboard/writer.py(360): add_scalar",
    "wandb/sdk/wandb_run.py(1705): log",
)
COMPILED_RANGES = (
    "entire_frame_compile",
    "OutputGraph.call_user_compiler (dynamo_timed)",
    "compile_fx.<locals>.fw_compiler_base (dynamo_timed)",
    "entire_backward_compile",
)
COMPILED_FRAMES = (
    "torch/_dynamo/convert_frame.py(503): _compile",
    "torch/_inductor/compile_fx.py(1200): compile_fx",
    "triton/compiler/compiler.py(226): compile",
)
OWN_CODE = ("metrics.py(41): accuracy", "/home/me/project/schedule.py(7): next_weights", "loop.py(12): <lambda>")
ALLOCATIONS = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "hipMalloc", "cuMemCreate", "cuMemMap")
READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")
SIZED = ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::bincount", "aten::unique_dim")
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "hipStreamSynchronize", "cuStreamSynchronize")
WAITS_FOR_ALL = (*WAITS, "cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize")


def paused(*names: str) -> Put:
    """A Python call, in half of the cases one that calls others."""

    def put(block: Block, base: Base) -> int:
        end = block.length_ns
        if block.rng.random() < 0.5:
            block.frame("<built-in method write of _io.BufferedWriter object at 0x7f20>", end // 5, end - 2 * US)
        block.frame(block.any_of(*names), 0, end)
        return end

    return put


def loaded(block: Block, base: Base) -> int:
    """A batch, in half of the cases made by own code that runs operators."""
    end = block.length_ns
    block.mark(block.any_of(*LOADERS), 0, end)
    if block.rng.random() < 0.5:
        block.frame("data.py(31): __getitem__", end // 10, end // 2)
        block.op("aten::stack", end // 2 + US, end - 2 * US)
    return end


def saved(block: Block, base: Base) -> int:
    """A checkpoint; in half of the cases it copies a small tensor from the device first."""
    end = block.length_ns
    block.frame(block.any_of(*SAVES), 0, end)
    if base.has_device and block.rng.random() < 0.5:
        block.op("aten::copy_", US, end // 20)
        link = block.call("cudaMemcpyAsync", 2 * US, end // 20 - US)
        block.on_device(3 * US, 5 * US, link, "Memcpy DtoH (Device -> Pageable)", bytes=1 << 16, **MEMCPY)
    return end


def compiled(block: Block, base: Base) -> int:
    if block.rng.random() < 0.5:
        block.frame(block.any_of(*COMPILED_FRAMES), 0, block.length_ns)
    else:
        block.op(block.any_of(*COMPILED_RANGES), 0, block.length_ns)
    return block.length_ns


def computed(block: Block, base: Base) -> int:
    """Other code: one long operator, several, or a function."""
    end, kind = block.length_ns, block.rng.randrange(3)
    if kind == 0:
        block.op(block.any_of("aten::prepare", "aten::topk", "aten::sort"), 0, end)
    elif kind == 1:
        for at in range(4):
            block.op("aten::sort", at * end // 4, (at + 1) * end // 4 - 100)
    else:
        block.frame(block.any_of(*OWN_CODE), 0, end)
        block.op("aten::cumsum", end // 3, end // 2)
    return end


def marked(*names: str) -> Put:
    """An annotation."""

    def put(block: Block, base: Base) -> int:
        block.mark(block.any_of(*names), 0, block.length_ns)
        return block.length_ns

    return put


def allocated(block: Block, base: Base) -> int:
    """One call of the driver or several."""
    count = block.rng.choice((1, 3))
    name = block.any_of(*ALLOCATIONS)
    for at in range(count):
        block.call(name, at * block.length_ns // count, (at + 1) * block.length_ns // count)
    return block.length_ns


def blocked(calls: tuple[str, ...], ops: tuple[str, ...] = (), copy: str = "", *, bytes_: int = 4) -> Put:
    """The host waits for a kernel that fills a part of the block, then does what it could have done meanwhile.

    :param calls: what waits; with a copy, also calls that copy and wait at once.
    """

    def put(block: Block, base: Base) -> int:
        end = block.length_ns
        # Just as long as what follows: else the host would be ahead afterwards, and hide what else holds it up.
        waited = end // 2
        block.launched("aten::mm", 0, waited, block.any_of("gemm", "ampere_bf16_s16816gemm", "triton_red_fused_sum_3"))
        begun = HOST_NS + 100
        if ops:
            block.op(block.any_of(*ops), begun, waited)
            if ops != COPIES and block.rng.random() < 0.5:
                block.op("aten::copy_", begun + 20, begun + 80)
        call = block.any_of(*calls)
        itself = bool(copy) and "Memcpy" in call
        if copy and not itself:
            link = block.call("cudaMemcpyAsync", begun + 100, begun + 200)
        waits = block.call(call, begun + 300, waited)
        if copy:
            block.on_device(waited - US, waited, waits if itself else link, copy, bytes=bytes_, **MEMCPY)
        block.op("aten::prepare", waited + 100, end)
        # Without the wait this runs while the kernel does.
        return end - waited

    return put


COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")


def looped(block: Block, base: Base) -> int:
    """A function that picks slices of a tensor one by one; on a device by a kernel for each."""
    count = block.rng.randrange(12, 40)
    each = block.length_ns // count
    picking = each // block.rng.choice((2, 3))
    block.frame(block.any_of("model.py(71): scan", "rnn.py(9): forward"), 0, count * each)
    if base.has_device:
        op = block.any_of("aten::index_select", "aten::index")
        for at in range(count):
            block.launched(op, at * each, at * each + picking, "indexSelectLargeIndex<float, long>")
            block.launched("aten::addmm", at * each + picking, (at + 1) * each, "ampere_bf16_s16816gemm")
        block.wait()
        return (count - 1) * (picking - LEAD_NS)
    op = block.any_of("aten::select", "aten::slice", "aten::narrow", "aten::index")
    for at in range(count):
        block.op(op, at * each, at * each + picking)
        block.op("aten::addmm", at * each + picking, (at + 1) * each)
    return (count - 1) * picking
