"""What a job does where memory is short: gives freed memory back at once, and lets like layers share one layer's.

[Note: one layer's memory] How long a layer takes does not depend on its numbers. So a model that does not fit is timed
with layers of one kind in the memory of the first of them; that of the others is given back. Their gradients are
dropped as they are complete, so that the optimizer makes no state for them and updates none. Every layer is computed,
forward and backward, as often as the script says; only its losses mean nothing, and the script is ended after it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tightship_offload.plan.host_limits import own_bytes, read_host_limits
from tightship_offload.runtime.blocks import Block

_M_MMAP_THRESHOLD = -3
_THRESHOLD_BYTES = 128 * 1024
"""glibc's own at the start of a process; it would grow with what is freed, up to 32 MiB."""
NEEDED = 4
"""Times the bytes of its trained parameters: what a training takes beside them, for gradients, moments, activations."""
Kind = tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, bool], ...]


def return_freed_memory() -> None:
    """From now on memory of freed tensors goes back to the system, and does not stay with the allocator.

    glibc keeps what is smaller than the largest block that was ever freed, up to 32 MiB: half as much again as a job
    uses. See mallopt(3); other C libraries have no such function, and no such habit.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


def is_short(model: nn.Module) -> bool:
    """Whether a training of the model would not find room for gradients, Adam's state and some activations."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    on_gpu = any(parameter.is_cuda for parameter in trained)
    free = torch.cuda.mem_get_info()[0] if on_gpu else read_host_limits().usable
    return free is not None and free < NEEDED * sum(p.numel() * p.element_size() for p in trained)


def share_memory(blocks: Sequence[Block]) -> None:
    """See [Note: one layer's memory]."""
    for group in _alike(blocks):
        _share(group)


def move_one_of_each(blocks: Sequence[Block], move: Callable[[nn.Module], object]) -> None:
    """Move layers to a device that has no room for all: of each kind, the first one's parameters alone."""
    for group in _alike(blocks):
        for block in group:
            move(block.module)
            _share(group)  # the parameters of the others are there now, and do not move again; their buffers do


def _alike(blocks: Sequence[Block]) -> list[list[Block]]:
    found: dict[Kind, list[Block]] = {}
    for block in blocks:
        kind = tuple((tuple(p.shape), p.stride(), p.dtype, p.requires_grad) for p in block.parameters)
        found.setdefault(kind, []).append(block)
    return list(found.values())


def _share(group: Sequence[Block]) -> None:
    for block in group[1:]:
        for parameter, shared in zip(block.parameters, group[0].parameters, strict=True):
            parameter.data = shared.data


def drop_gradients(blocks: Sequence[Block]) -> None:
    """See [Note: one layer's memory]."""
    for block in blocks:
        for parameter in block.parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_drop)  # type: ignore[no-untyped-call]


def _drop(parameter: Tensor) -> None:
    parameter.grad = None


def process_bytes(model: nn.Module) -> int:
    """Host memory of this process beside its model's: the interpreter, libraries, data. Of files, nothing counts."""
    in_model = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(model) if not t.is_cuda}
    return max(0, (own_bytes() or 0) - sum(in_model.values()))


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
