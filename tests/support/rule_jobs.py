"""One small job per rule: with the defect, and the same job put right."""

from __future__ import annotations

from collections.abc import Callable

from gpu_job import MS, US, GpuJob

STEPS = 4
GEMM = (400 * US, "ampere_bf16_s16816gemm_bf16_128x128")
HALF = ["c10::BFloat16", "c10::BFloat16"]
SQUARE = [[4096, 2560], [2560, 4096]]
"""With GEMM's time four fifths of what the fastest products reach on GpuJob's device."""

Job = Callable[[GpuJob, bool], None]


def work(job: GpuJob, times: int = 5) -> None:
    """What every step computes."""
    for _ in range(times):
        job.op("aten::mm", GEMM, dims=SQUARE, types=HALF)


def scalar_read(job: GpuJob, bad: bool) -> None:
    work(job)
    if bad:
        begun = job.now_ns
        job.kernel_of(2 * US, "Memcpy DtoH (Device -> Pageable)", category="gpu_memcpy", bytes=4)
        job.wait()
        job.host("aten::item", begun, job.now_ns)
        job.pause(300 * US)


def shape_read(job: GpuJob, bad: bool) -> None:
    work(job)
    if bad:
        begun = job.now_ns
        job.kernel_of(5 * US, "cub::DeviceSelect")
        job.wait()
        job.host("aten::nonzero", begun, job.now_ns)
        job.pause(300 * US)


def synchronize(job: GpuJob, bad: bool) -> None:
    work(job)
    if bad:
        job.wait("cudaDeviceSynchronize")
        job.pause(300 * US)


def allocator(job: GpuJob, bad: bool) -> None:
    work(job)
    job.drain()
    if bad:
        begun = job.now_ns
        job.pause(200 * US)
        job.call(begun, job.now_ns, name="cudaMalloc")


def framed(name: str) -> Job:
    """A pause inside a Python call of this name."""

    def job_of(job: GpuJob, bad: bool) -> None:
        work(job)
        job.drain()
        if bad:
            begun = job.now_ns
            job.pause(200 * US)
            job.frame_of(name, begun)

    return job_of


def compiling(job: GpuJob, bad: bool) -> None:
    work(job)
    job.drain()
    if bad:
        begun = job.now_ns
        job.pause(2 * MS)
        job.host("entire_frame_compile", begun, job.now_ns)


def host_code(job: GpuJob, bad: bool) -> None:
    work(job, 2)
    job.drain()
    if bad:
        begun = job.now_ns
        job.pause(2 * MS)
        job.host("aten::topk", begun, job.now_ns)
    work(job)


def pageable(job: GpuJob, bad: bool) -> None:
    job.drain()
    begun = job.now_ns
    if bad:
        call = job.call(begun, begun + 500 * US, name="cudaMemcpyAsync")
        job.copy(begun + 450 * US, begun + 500 * US, name="Memcpy HtoD (Pageable -> Device)", link=call, bytes=4 << 20)
        job.now_ns = begun + 500 * US
        job.free_ns[7] = job.now_ns
    else:
        job.kernel_of(50 * US, "Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy", bytes=4 << 20, stream=20)
    job.host("aten::copy_", begun, job.now_ns)
    work(job)


def waiting_copy(job: GpuJob, bad: bool) -> None:
    work(job)
    begun = job.now_ns
    job.kernel_of(50 * US, "Memcpy DtoH (Device -> Pinned)", category="gpu_memcpy", bytes=1 << 20)
    if bad:
        job.wait()
    job.host("aten::copy_", begun, job.now_ns)
    job.pause(300 * US)


def filled(job: GpuJob, bad: bool) -> None:
    job.drain()
    if bad:
        job.op("aten::zeros", host_ns=200 * US)
        begun = job.now_ns
        job.kernel_of(60 * US, "Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy", bytes=4 << 20)
        job.wait()
        job.host("aten::to", begun, job.now_ns)
    else:
        job.op("aten::zeros", (5 * US, "FillFunctor"))
    work(job)


def round_trip(job: GpuJob, bad: bool) -> None:
    work(job)
    for name in ("Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)") if bad else ():
        begun = job.now_ns
        job.kernel_of(60 * US, name, category="gpu_memcpy", bytes=1 << 20)
        job.wait()
        job.host("aten::copy_", begun, job.now_ns)
        job.pause(50 * US)
    job.op("aten::softmax", (20 * US, "softmax"))


def zeroing(job: GpuJob, bad: bool) -> None:
    work(job)
    begun = job.now_ns
    for _ in range(20 if bad else 0):
        job.kernel_of(8 * US, "Memset (Device)", category="gpu_memset", call="cudaMemsetAsync", bytes=1 << 16)
    job.host("Optimizer.zero_grad#AdamW.zero_grad", begun, job.now_ns + US, category="user_annotation")


def casting(job: GpuJob, bad: bool) -> None:
    work(job)
    dims, there, back = [[512, 1024], [512, 1024], []], ["float", "c10::Half", ""], ["c10::Half", "float", ""]
    for types in (there, back) if bad else ():
        begun = job.now_ns
        job.pause(US)
        job.op("aten::copy_", (100 * US, "direct_copy_kernel_cuda"), dims=dims, types=types)
        job.host("aten::_to_copy", begun, job.now_ns)
        job.op("aten::layer_norm", (20 * US, "layer_norm"))


def layouts(job: GpuJob, bad: bool) -> None:
    kernels = ((100 * US, "cudnn::ops::nchwToNhwcKernel<float>"),) if bad else ()
    job.op("aten::cudnn_convolution", *kernels, GEMM, *kernels)
    work(job)


def launches(job: GpuJob, bad: bool) -> None:
    for _ in range(60):
        job.op("aten::mm", (5 * US if bad else 60 * US, "gemm"), host_ns=30 * US)


def chains(job: GpuJob, bad: bool) -> None:
    """Eight times ten operators on one tensor, or one kernel that does what they do."""
    work(job)
    for _ in range(8):
        for name in ("mul", "add", "sigmoid", "neg", "tanh") * 2 if bad else ("mul",):
            kernel = f"vectorized_elementwise_kernel<4, {name}>"
            job.op(f"aten::{name}", (10 * US, kernel), dims=SQUARE[:1], types=HALF[:1])
        work(job, 1)


def float32(job: GpuJob, bad: bool) -> None:
    for _ in range(5):
        job.op("aten::mm", (900 * US, "ampere_sgemm_128x64_nn") if bad else GEMM)


def unaligned(job: GpuJob, bad: bool) -> None:
    work(job)
    size = 2559 if bad else 2560
    for _ in range(3):
        job.op(
            "aten::mm", (1200 * US, "cutlass_align1") if bad else GEMM, dims=[[4096, size], [size, 4096]], types=HALF
        )


def attention(job: GpuJob, bad: bool) -> None:
    scores = [[16, 512, 512], [], []]
    work(job, 1)
    if bad:
        job.op("aten::bmm", GEMM, dims=[[16, 512, 64], [16, 64, 512]], types=HALF)
        job.op("aten::mul", (300 * US, "elementwise_kernel"), dims=scores, types=["c10::BFloat16", "Scalar", ""])
        job.op("aten::_softmax", (300 * US, "softmax_warp"), dims=scores, types=["c10::BFloat16", "Scalar", ""])
        job.op("aten::bmm", GEMM, dims=[[16, 512, 512], [16, 512, 64]], types=HALF)
    else:
        job.op("aten::_scaled_dot_product_flash_attention", (500 * US, "flash_fwd_kernel"))
    work(job, 1)


def convolution(job: GpuJob, bad: bool) -> None:
    begun, bias = job.now_ns, [128] if bad else []
    job.op("aten::cudnn_convolution", GEMM)
    if bad:
        job.op("aten::add_", (100 * US, "elementwise_kernel<add>"), dims=[[8, 128, 56, 56], [1, 128, 1, 1], []])
    dims, types = [[8, 64, 56, 56], [128, 64, 3, 3], bias], ["float", "float", "float" if bad else ""]
    job.host("aten::conv2d", begun, job.now_ns, **{"Input Dims": dims, "Input type": types, "Sequence number": 7})
    job.op("aten::batch_norm", (100 * US, "bn_fw_tr_1C11"), dims=[[8, 128, 56, 56]], types=["float"])
    work(job)


def small_grids(job: GpuJob, bad: bool) -> None:
    work(job, 2)
    for _ in range(4):
        job.op("aten::mm", (400 * US, "gemm"), grid=[8 if bad else 432, 1, 1])


def slow_attention(job: GpuJob, bad: bool) -> None:
    """8 batches of 16 heads of 64 over 2,048 positions: 137 GFLOP, at half of the rate of products 1.01 ms."""
    work(job, 2)
    factors = [[8, 2048, 16, 64]] * 3
    kernel = (4 * MS if bad else 1200 * US, "flash_fwd_kernel")
    job.op("aten::_flash_attention_forward", kernel, dims=factors, types=[HALF[0]] * 3)


def decoding(job: GpuJob, bad: bool) -> None:
    """8 requests, or 256: more than this device needs to compute as long as it reads."""
    begun, requests = job.now_ns, 8 if bad else 256
    work(job)
    job.op("vllm::unified_attention_with_output", (200 * US, "kernel_unified_attention_2d"))
    name = f"execute_context_0(0)_generation_{requests}({requests})"
    job.host(name, begun, job.now_ns, category="user_annotation")


def one_by_one(job: GpuJob, bad: bool) -> None:
    """Four images, one after the other or in one batch."""
    for _ in range(4 if bad else 1):
        images = 1 if bad else 4
        job.kernel_of(50 * US, "Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy", bytes=images * 6 << 20)
        begun = job.now_ns
        job.op("aten::conv2d", dims=[[images, 3, 1008, 1008], [1024, 3, 14, 14]], types=HALF)
        work(job, 1)
        job.frame_of("nn.Module: Encoder_0", begun)


def exposed(job: GpuJob, bad: bool) -> None:
    """The gradients are sent after the backward pass, or beside it."""
    if bad:
        work(job)
        job.drain()
    job.op("c10d::allreduce_", (900 * US, "ncclDevKernel_AllReduce_Sum_f32"), stream=20)
    if not bad:
        work(job)
    job.drain()


def collective(name: str, elements: int) -> dict[str, object]:
    return {"Collective name": name, "dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements} | {
        "Group size": 8, "Process Group Name": "0"}  # fmt: skip


def tiny(job: GpuJob, bad: bool) -> None:
    work(job)
    for _ in range(40 if bad else 2):
        job.drain()
        args = collective("allreduce", 1000 if bad else 2 << 20)
        job.op("c10d::allreduce_", (30 * US, "ncclDevKernel_AllReduce_Sum_f32"), stream=20, **args)
    job.drain()


def copied(job: GpuJob, bad: bool) -> None:
    """An all-reduce through a second buffer, or in place."""
    through = (60 * US, "Memcpy DtoD (Device -> Device)")
    job.op("aten::copy_", through, category="gpu_memcpy", bytes=8 << 20)
    work(job)
    job.drain()
    begun = job.now_ns
    if bad:
        job.op("aten::copy_", through, category="gpu_memcpy", bytes=8 << 20)
    job.kernel_of(40 * US, "two_shot_all_reduce_kernel<c10::BFloat16>")
    if bad:
        job.op("aten::copy_", through, category="gpu_memcpy", bytes=8 << 20)
    job.host("vllm::all_reduce", begun, job.now_ns)
    job.drain()


def slow_link(job: GpuJob, bad: bool) -> None:
    """100 MiB: 0.3 ms by NVLink at its rate, 8 ms over PCIe."""
    job.distributed = {"world_size": 8}
    work(job, 1)
    if bad:
        job.drain()
    kernel = (8 * MS if bad else 800 * US, "ncclDevKernel_AllReduce_Sum_f32")
    job.op("c10d::allreduce_", kernel, stream=20, **collective("allreduce", 25 << 20))
    work(job)


def gloo(job: GpuJob, bad: bool) -> None:
    work(job)
    job.drain()
    if bad:
        begun = job.now_ns
        job.pause(300 * US)
        job.host("gloo:all_reduce", begun, job.now_ns, category="user_annotation")


def replicated(job: GpuJob, bad: bool) -> None:
    begun = job.now_ns
    if bad:
        job.pause(500 * US)
    work(job)
    if bad:
        job.host("DataParallel.forward", begun, job.now_ns, category="user_annotation")


JOBS: dict[str, Job] = {
    "synchronous-scalar-read": scalar_read,
    "data-dependent-shape": shape_read,
    "explicit-synchronization": synchronize,
    "allocator-churn": allocator,
    "cache-flush": framed("torch/cuda/memory.py(200): empty_cache"),
    "garbage-collection": framed("<built-in function collect>"),
    "logging-in-step": framed("<built-in function print>"),
    "recompilation": compiling,
    "busy-host": host_code,
    "pageable-copy": pageable,
    "synchronous-copy": waiting_copy,
    "fill-then-copy": filled,
    "device-round-trip": round_trip,
    "zero-grad-memset": zeroing,
    "dtype-ping-pong": casting,
    "layout-ping-pong": layouts,
    "redundant-copy": copied,
    "launch-bound": launches,
    "unfused-elementwise": chains,
    "fp32-gemm": float32,
    "unaligned-half-dims": unaligned,
    "unfused-attention": attention,
    "conv-bias-before-batch-norm": convolution,
    "low-grid": small_grids,
    "slow-kernel": slow_attention,
    "small-decode-batch": decoding,
    "batches-of-one": one_by_one,
    "exposed-communication": exposed,
    "tiny-collectives": tiny,
    "low-bus-bandwidth": slow_link,
    "gloo-on-gpu": gloo,
    "data-parallel": replicated,
}
"""Rule → the job."""

EXPECTED_NS: dict[str, int] = {
    "explicit-synchronization": 309 * US,
    "allocator-churn": 200 * US,
    "cache-flush": 200 * US,
    "garbage-collection": 200 * US,
    "logging-in-step": 200 * US,
    "recompilation": 2 * MS,
    "busy-host": 2 * MS,
    "pageable-copy": 450 * US,
    "zero-grad-memset": 160 * US,
    "dtype-ping-pong": 200 * US,
    "layout-ping-pong": 200 * US,
    "redundant-copy": 2 * 60 * US,
    "unfused-elementwise": 8 * 9 * 10 * US,
    "fp32-gemm": 5 * 600 * US,
    "unfused-attention": 600 * US,
    "conv-bias-before-batch-norm": 100 * US,
    "low-grid": round(4 * 400 * US * (1 - 8 / 108)),
    "slow-kernel": 4 * MS - round(4 * 8 * 16 * 2048**2 * 64 / (271.2e12 / 2) * 1e9),
    "small-decode-batch": 5 * GEMM[0] // 2,
    "batches-of-one": 3 * GEMM[0],
    "exposed-communication": 900 * US,
    "tiny-collectives": 39 * (30 + 6) * US,  # each is issued only when the one before is done: 6 µs of the host
    "gloo-on-gpu": 300 * US,
}
"""Rule → what the defect costs a step, where the job is built so that it is known exactly."""


def job_of(rule: str, *, bad: bool, only_step: int | None = None) -> GpuJob:
    """The whole recording: STEPS equal steps, and the begin of another.

    :param only_step: which of them has the defect; None: all have.
    """
    job = GpuJob()
    for step in range(STEPS):
        begun = job.now_ns
        JOBS[rule](job, bad and only_step in (None, step))
        job.drain()
        job.step_of(begun)
    job.begin_step()
    return job
