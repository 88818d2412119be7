"""What `apply` looks at before it changes anything: parameters that cannot move, and host memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from tightship_offload.backends.base import Backend
from tightship_offload.errors import OffloadError
from tightship_offload.plan.host_limits import read_host_limits
from tightship_offload.runtime.layer import Layer


def check_parameters(model: nn.Module) -> None:
    """:raises OffloadError: some have no memory, are parts of a sharded one, or were made in inference mode."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise OffloadError(
                f"{name!r:.80} is on the meta device and has no values; load the whole model into host memory before "
                "apply (no device_map; to_empty() and load_state_dict() after torch.device('meta'))"
            )
        if hasattr(tensor, "device_mesh"):
            raise OffloadError(
                f"{name!r:.80} is a DTensor, a part of a parameter that several processes share; call apply on the "
                "model before fully_shard or parallelize_module, and do without them"
            )
        if tensor.is_inference():
            raise OffloadError(
                f"{name!r:.80} was made in torch.inference_mode() and cannot be trained; make the model outside of it"
            )


def check_host(machine: Backend, moving: Sequence[Layer], optimizer: Optimizer, *, in_files: bool) -> None:
    """Whether the host has memory for what the first step makes.

    :param in_files: weights and optimizer state are in files, and only gradients in memory.
    :raises OffloadError: it has not.
    """
    known = [one for one in (machine.limits().host_bytes, read_host_limits().usable) if one is not None]
    free = min(known, default=None)
    gradients = sum(layer.size_bytes for layer in moving)
    adam = "betas" in optimizer.defaults and not optimizer.state and not in_files
    state = sum(8 * p.numel() for layer in moving for p in layer.parameters if p.requires_grad) if adam else 0
    masters = sum(4 * p.numel() for layer in moving for p in layer.parameters if layer.wants_master(p))
    away = [p for layer in moving for p in layer.parameters if p.device.type != "cpu" and not in_files]
    arriving = sum(p.numel() * p.element_size() for p in away)
    need = gradients + state + masters + arriving
    if free is not None and need > free:
        raise OffloadError(
            f"Host memory is too small: gradients {_gib(gradients)}, optimizer state {_gib(state)}, fp32 masters "
            f"{_gib(masters)} and weights to come {_gib(arriving)} need {_gib(need)} of {_gib(free)} that are free; "
            "make more layers resident or train on a host with more memory"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
