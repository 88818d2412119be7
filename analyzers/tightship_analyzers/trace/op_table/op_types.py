"""The operations of a pipeline- and data-parallel training step, as op tables name them."""

from __future__ import annotations

from enum import IntEnum


class OpType(IntEnum):
    """One kind of operation; `label` is its name in a table's `optype` column."""

    FORWARD_COMPUTE = 0
    BACKWARD_COMPUTE = 1
    FORWARD_SEND = 2
    FORWARD_RECV = 3
    BACKWARD_SEND = 4
    BACKWARD_RECV = 5
    PARAMS_ALL_GATHER = 6
    GRADS_REDUCE_SCATTER = 7
    SEPARATE_GRADS_ALL_REDUCE = 8
    LAYERNORM_GRADS_ALL_REDUCE = 9
    EMBEDDING_GRADS_ALL_REDUCE = 10
    OPTIMIZER_CLIP_MAIN_GRAD = 11
    OPTIMIZER = 12
    GC = 13

    @property
    def label(self) -> str:
        """`FORWARD_SEND` → `forward-send`."""
        return self.name.lower().replace("_", "-")


BY_LABEL = {kind.label: kind for kind in OpType}

COMPUTES = (OpType.FORWARD_COMPUTE, OpType.BACKWARD_COMPUTE)
POINT_TO_POINT = (OpType.FORWARD_SEND, OpType.FORWARD_RECV, OpType.BACKWARD_SEND, OpType.BACKWARD_RECV)

DATA_PARALLEL = (OpType.PARAMS_ALL_GATHER, OpType.GRADS_REDUCE_SCATTER, OpType.SEPARATE_GRADS_ALL_REDUCE)
"""Collectives of one pipeline stage over all its data-parallel ranks."""

COMMUNICATES = frozenset(
    (
        *POINT_TO_POINT,
        *DATA_PARALLEL,
        OpType.LAYERNORM_GRADS_ALL_REDUCE,
        OpType.EMBEDDING_GRADS_ALL_REDUCE,
        OpType.OPTIMIZER_CLIP_MAIN_GRAD,
    )
)
"""Types whose usual cost is the median (a few slow transfers are faults of the network); the mean for the others."""

FAMILIES = {
    OpType.FORWARD_SEND: "forward-pp-comm",
    OpType.FORWARD_RECV: "forward-pp-comm",
    OpType.BACKWARD_SEND: "backward-pp-comm",
    OpType.BACKWARD_RECV: "backward-pp-comm",
}
"""The two ends of a transfer are one cause of slowness; every other type stands for itself."""


def family(kind: OpType) -> str:
    """The name under which the type's share of a slowdown is reported."""
    return FAMILIES.get(kind, kind.label)
