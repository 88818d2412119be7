"""Which work of a device is communication between ranks: by the operator that launched it, and by its name.

The third and strongest evidence, the arguments that torch records with a collective, is read with the events.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.trace.columns import Bools, DeviceEvents, HostOps, Launches
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.names import Names
from tightship_analyzers.trace.open_rows import OpenRows

LIBRARIES: tuple[tuple[str, str], ...] = (
    ("NCCL and its forks", r"^(?:void )?nccl|ncclx?(?:Sym)?(?:Dev)?Kernel"),
    ("RCCL", r"^(?:void )?rccl|rcclKernel"),
    ("MSCCL, MSCCL++", r"^mscclKernel|mscclpp::"),
    ("HCCL (Gaudi, Ascend)", r"^hccl|^hcom_"),
    ("oneCCL", r"^oneccl|oneapi::ccl|^ccl_\w*kernel"),
    ("UCC", r"^ucc_"),
    ("Gloo", r"^gloo:"),
    ("NVSHMEM, rocSHMEM", r"^nvshmem|nvshmemi?_|rocshmem"),
    # Of DeepEP's kernels, layout:: only counts tokens.
    ("DeepEP", r"deep_ep::(?:intra|inter)node|deep_ep::low_latency|hybrid_ep::"),
    (
        "torch symmetric memory",
        r"(?:one|two)_?shot_?all_?reduce|multimem_\w*(?:reduce|gather)|symm_mem::|symmetric_memory::",
    ),
    ("vLLM, SGLang, AITER", r"cross_device_reduce|quickreduce::|allreduce_prototype"),
    (
        "TensorRT-LLM, FlashInfer",
        r"allreduce_fusion_kernel|(?:mnnvl|trtllm)_all_?reduce|\ballReduce\w*Kernel|moeA2A\w+Kernel",
    ),
    ("Transformer Engine", r"userbuffers_(?:fp|push|pull|sendrecv)"),
)
"""Library → pattern of its kernels' names, as each library's sources have them."""

_KERNELS = re.compile("|".join(pattern for _, pattern in LIBRARIES), re.IGNORECASE)

_NAMESPACE = re.compile(r"\(anonymous namespace\)::")
_ARGUMENTS = re.compile(r"[<(]")
_WITHIN_A_BLOCK = "".join(rf"(?<!{group})(?<!{group}_)" for group in ("block", "warp", "wave", "cta", "thread"))
_COLLECTIVE = re.compile(
    rf"{_WITHIN_A_BLOCK}(?:all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|all2all)", re.IGNORECASE
)
"""The function's own name is that of a collective among ranks, not of one among the threads of a block: libraries that
are not listed. Its template arguments may be anything."""

COLLECTIVE_OPS = re.compile(
    r"record_param_comms$"
    r"|(?:c10d|_?c10d_functional(?:_autograd)?|ncclx?|rccl|hccl|xccl|gloo|ucc|mpi|symm_mem|nvshmem|deep_ep)::?\w"
    r"|vllm::(?:all_reduce|all_gather|reduce_scatter)$"
)
"""Operators and ranges that are collectives: those of torch.distributed, of its back ends, and symmetric memory."""


def is_communication(name: str) -> bool:
    """Does a kernel of this name move data between ranks?"""
    if _KERNELS.search(name) is not None:
        return True
    return _COLLECTIVE.search(_ARGUMENTS.split(_NAMESPACE.sub("", name), maxsplit=1)[0]) is not None


def launched_by_collectives(
    names: Names, ops: HostOps, is_recorded: Bools, launches: Launches, events: DeviceEvents
) -> Bools:
    """(events,) was the innermost operator around the launch a collective? By the launch, else by the external id.

    Copies and element-wise kernels around a collective have their own operators (`aten::copy_`) in between.

    :param is_recorded: (ops,) the trace itself says that the operator is a collective.
    """
    is_collective = is_recorded | names.mask(ops.name, lambda text: COLLECTIVE_OPS.match(text) is not None)
    if not is_collective.any():
        return np.zeros(len(events), dtype=np.bool_)
    by_launch = np.zeros(len(launches) + 1, dtype=np.bool_)
    for tid in np.intersect1d(ops.tid[is_collective], launches.tid).tolist():
        own = np.flatnonzero(ops.tid == tid)
        mine = own[is_collective[own]]
        around = Intervals.of(ops.start_ns[mine], ops.end_ns[mine])
        calls = np.flatnonzero(launches.tid == tid)
        calls = calls[around.contains(launches.start_ns[calls])]
        own = own[around.meets(ops.start_ns[own], ops.end_ns[own])]
        innermost = OpenRows.of(ops.start_ns[own], ops.end_ns[own]).at(launches.start_ns[calls])
        by_launch[calls] = (innermost >= 0) & is_collective[own[innermost]]
    known = ops.external_id[is_collective]
    by_id = np.isin(events.external_id, known[known > 0])
    return np.where(events.launch >= 0, by_launch[events.launch], by_id)
