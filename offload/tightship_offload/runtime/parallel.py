"""Data parallel training: every rank has its own window, gradients are averaged as they leave the device.

[Note: one order for all ranks] A collective must be called in the same order by all ranks, but ranks may leave layers
in different orders, or skip some. So layers are averaged in the reverse of the order in which the model registers
them, each when it and all before it are ready, and at the end of backward all that are left. Each carries a flag per
parameter that says whether this rank has a gradient: what no rank has stays None, as without us.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tightship_offload.errors import OffloadError


class Averaging:
    """The mean over a process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.ranks = dist.get_world_size(group)

    def start_alike(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """All ranks go on with the first one's values."""
        first = dist.get_global_rank(self._group, 0)
        for tensor in tensors:
            staged = tensor.detach().to(device).contiguous()
            dist.broadcast(staged, first, group=self._group)
            with torch.no_grad():
                tensor.copy_(staged)

    def mean(
        self, gradients: Sequence[Tensor | None], like: Sequence[Tensor], device: torch.device
    ) -> list[Tensor | None]:
        """Of each gradient over all ranks, a missing one counting as zero; None where no rank has one.

        As torch's DistributedDataParallel does it: divided first, then summed.

        :param like: tensors of the gradients' shapes and formats.
        """
        found: list[Tensor | None] = [None] * len(gradients)
        for dtype in sorted({tensor.dtype for tensor in like}, key=str):
            places = [at for at, tensor in enumerate(like) if tensor.dtype == dtype]
            parts = [_flat(gradients[at], like[at], device) for at in places]
            flags = torch.tensor([gradients[at] is not None for at in places], dtype=dtype, device=device)
            flat = torch.cat([*parts, flags])
            flat[: -len(places)].mul_(1 / self.ranks)
            dist.all_reduce(flat, group=self._group)
            start = 0
            for at, any_has in zip(places, flat[-len(places) :].tolist(), strict=True):
                count = like[at].numel()
                if any_has:
                    found[at] = flat[start : start + count].view(like[at].shape)
                start += count
        return found


def _flat(gradient: Tensor | None, like: Tensor, device: torch.device) -> Tensor:
    return torch.zeros(like.numel(), dtype=like.dtype, device=device) if gradient is None else gradient.flatten()


def averaging(model: nn.Module, group: dist.ProcessGroup | None) -> Averaging | None:
    """What this training needs; None for a single rank.

    :param group: None: all ranks of torch.distributed, where it is initialised.
    :raises OffloadError: the model is wrapped already.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise OffloadError(
            "apply was given a DistributedDataParallel; give it the module inside (model.module): gradients are "
            "averaged over all ranks as they leave"
        )
    if not dist.is_available() or not dist.is_initialized():
        return None
    chosen = group if group is not None else dist.group.WORLD
    if chosen is None or dist.get_world_size(chosen) < 2:
        return None
    return Averaging(chosen)


def keep_out_others(model: nn.Module) -> None:
    """DistributedDataParallel around the model afterwards would average again; with nothing to do it refuses itself."""
    names = [name for name, _ in model.named_parameters()] + [name for name, _ in model.named_buffers()]
    model.__dict__["_ddp_params_and_buffers_to_ignore"] = names
