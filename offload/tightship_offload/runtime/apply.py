"""One line: `model, optimizer = apply(model, optimizer, window=3)`; the training loop stays as it is."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from tightship_offload.backends.base import DEADLINE_S, Backend
from tightship_offload.backends.cpu import CpuBackend
from tightship_offload.backends.cuda import CudaBackend
from tightship_offload.errors import OffloadError, PlanError
from tightship_offload.plan.capabilities import files_exclude
from tightship_offload.plan.file import read_plan
from tightship_offload.plan.model import (
    DEADLINE,
    Clipping,
    ModelSpec,
    Plan,
    UpdateOrder,
    UpdateStart,
    fingerprint,
    model_differences,
)
from tightship_offload.runtime.blocks import Block, find_blocks
from tightship_offload.runtime.checks import check_host, check_parameters
from tightship_offload.runtime.early_updates import EarlyUpdates
from tightship_offload.runtime.engine import Engine, has_engine
from tightship_offload.runtime.layer import Layer
from tightship_offload.runtime.machine import check_machine
from tightship_offload.runtime.masters import RestMasters
from tightship_offload.runtime.non_layer import check_rest, place_state
from tightship_offload.runtime.nvme import NvmeStore, NvmeTier
from tightship_offload.runtime.optimizer import check_step
from tightship_offload.runtime.parallel import Averaging, averaging, keep_out_others
from tightship_offload.runtime.part_of_optimizer import check_optimizer, try_optimizer
from tightship_offload.runtime.slots import SlotPool
from tightship_offload.runtime.update_lane import threads_for

M = TypeVar("M", bound=nn.Module)
O = TypeVar("O", bound=Optimizer)  # noqa: E741


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """What the runtime takes from a plan, or from the arguments of `apply`."""

    slots: int
    resident: frozenset[int] = frozenset()
    prefetch: int | None = None
    """Layers fetched ahead; None: one less than there are slots."""
    layers: tuple[str, ...] | None = None
    master: bool = False
    """16-bit parameters are updated as fp32 copies: of layers that move in host memory, else on the device."""
    early: EarlyUpdates | None = None
    """Updates start during backward."""
    nvme: NvmeTier | None = None
    """Layers are in files."""
    deadline_s: float = DEADLINE_S
    """For each wait."""
    order: UpdateOrder = UpdateOrder.NEXT_USE
    """Of updates that are ready."""
    threads: int | None = None
    """CPU threads for updates; None: see `threads_for`."""
    fused: bool = False
    """Layers that move take the optimizer's fused form where the script leaves the form open."""


@torch.inference_mode(False)
def apply(
    model: M,
    optimizer: O,
    plan: str | os.PathLike[str] | Plan | None = None,
    *,
    window: int | None = None,
    resident: Collection[int] = (),
    layers: str | Sequence[str] | None = None,
    prefetch: int | None = None,
    master: bool = False,
    fused: bool = False,
    early: EarlyUpdates | None = None,
    group: dist.ProcessGroup | None = None,
    nvme: NvmeTier | None = None,
    deadline_s: float | None = None,
    backend: Backend | None = None,
) -> tuple[M, O]:
    """Keep only a window of the model's layers on the device. Returns the same two objects.

    :param plan: what to do, as a file or a `Plan`; or by hand:
    :param window: how many slots the moving layers take turns in (at least 2).
    :param resident: numbers of layers that never move, counted from 0.
    :param layers: patterns of the layers' names (`transformer.h.*`); None: found.
    :param prefetch: how many layers ahead are fetched; None: one less than the window.
    :param master: update every trained 16-bit parameter as an fp32 copy, which checkpoints of the optimizer hold.
    :param fused: update layers that move with the optimizer's fused form where it was made without saying which one;
        the last digits of their weights are then those of `fused=True`.
    :param early: let updates start during backward, under what this declares; None: not before `optimizer.step()`.
    :param group: ranks that train together, each on its own data: gradients are averaged over them as they leave; None:
        all of torch.distributed, where it is initialised.
    :param nvme: keep the moving layers, with their optimizer state, in files, whole after a crash.
    :param deadline_s: how long one wait for a copy or an update may take; None: as the plan says, else 300 s.
    :param backend: the machine; None: CUDA where there is one, else the CPU.
    :raises OffloadError: it cannot be done; nothing has been changed then.
    """
    if plan is not None:
        if window is not None or resident or layers is not None:
            raise OffloadError("apply was given a plan and a window by hand; give one of the two")
        read = plan if isinstance(plan, Plan) else read_plan(plan)
        if backend is None:
            check_machine(read)
        config = _from_plan(read, model)
    elif window is None:
        raise OffloadError("apply was given neither a plan nor a window; give plan='plan.yaml' or window=3")
    else:
        names = None if layers is None else (layers,) if isinstance(layers, str) else tuple(layers)
        config = WindowConfig(
            slots=window,
            resident=frozenset(resident),
            prefetch=prefetch,
            layers=names,
            master=master,
            early=early,
            nvme=nvme,
            fused=fused,
        )
    if deadline_s is not None:
        config = replace(config, deadline_s=DEADLINE.take(deadline_s, "deadline_s"))
    if has_engine(model):
        raise OffloadError(
            f"This {type(model).__name__} has an offload engine already; remove it first: engine_of(model).remove()"
        )
    check_optimizer(optimizer)
    check_parameters(model)
    blocks = find_blocks(model, config.layers)
    _check(config, blocks, model)
    machine = backend if backend is not None else _machine(model, config.deadline_s)
    moving = [
        Layer(index, block.name, block.module, block.parameters, master=config.master)
        for index, block in enumerate(blocks)
        if index not in config.resident
    ]
    check_host(machine, moving, optimizer, in_files=config.nvme is not None)
    threads_for(config.threads, on_cpu=machine.device.type == "cpu")
    check_step(optimizer)
    moved = [p for layer in moving for p in layer.parameters]
    try_optimizer(optimizer, moved, master=config.master, fused=config.fused)
    together = averaging(model, group)
    slots = min(config.slots, len(moving))
    largest = max((layer.size_bytes for layer in moving), default=0)
    store = _open(config.nvme, moving, model, optimizer, config, together) if config.nvme is not None else None
    try:
        for layer in moving:
            layer.take_memory(machine, None if store is None else store.slab(layer))
        pool = SlotPool(machine, [largest] * slots)
    except BaseException:
        if store is not None:
            store.close()
        if backend is None:
            machine.close()
        raise
    if together is not None:
        together.start_alike([*model.parameters(), *model.buffers()], machine.device)
        keep_out_others(model)
    for layer in moving:
        layer.move_in(keep=store is not None and store.resumes)
        if store is not None:
            store.moved_in(layer)
    _move_rest(model, optimizer, moving, machine.device)
    ahead = slots - 1 if config.prefetch is None else min(config.prefetch, slots - 1)
    Engine(
        model,
        optimizer,
        moving,
        machine,
        pool,
        prefetch=max(ahead, 0),
        early=config.early,
        averaging=together,
        store=store,
        masters=RestMasters(_rest_of(model, optimizer, moving)) if config.master else None,
        order=config.order,
        threads=config.threads,
        fused=config.fused,
    )
    return model, optimizer


def _open(
    tier: NvmeTier,
    moving: Sequence[Layer],
    model: nn.Module,
    optimizer: Optimizer,
    config: WindowConfig,
    together: Averaging | None,
) -> NvmeStore:
    refused = files_exclude(early=config.early is not None, masters=config.master, ranks=together is not None)
    if refused is not None:
        raise OffloadError(refused)
    if optimizer.state:
        raise OffloadError(
            "The optimizer has state already, which is not in the files; call apply before the first step"
        )
    identity = fingerprint((name, tuple(p.shape)) for name, p in model.named_parameters())
    store = NvmeStore(tier, moving, identity, type(optimizer).__name__)
    if store.rest is not None:
        try:
            check_rest(model, {id(p) for layer in moving for p in layer.parameters}, store.rest)
        except OffloadError:
            store.close()
            raise
    return store


def _from_plan(plan: Plan, model: nn.Module) -> WindowConfig:
    names = None if plan.model.layers is None else (plan.model.layers,)
    check_model(plan, model)
    nvme = None
    if plan.nvme is not None:
        nvme = NvmeTier(folder=plan.nvme.folder, resume=True, prefetch=plan.nvme.prefetch)
    early = None
    if plan.optimizer.start is UpdateStart.DURING_BACKWARD:
        early = EarlyUpdates(
            micro_batches=plan.loop.micro_batches, undo=plan.optimizer.clipping is Clipping.SPECULATIVE
        )
    return WindowConfig(
        slots=plan.window.slots,
        resident=frozenset(plan.window.resident),
        prefetch=plan.window.prefetch,
        layers=names,
        master=plan.precision.has_masters,
        early=early,
        nvme=nvme,
        deadline_s=DEADLINE_S if plan.deadline_s is None else plan.deadline_s,
        order=plan.optimizer.order,
        threads=plan.optimizer.threads,
        fused=plan.optimizer.fused,
    )


def check_model(plan: Plan, model: nn.Module) -> None:
    """:raises PlanError: the plan is for another model."""
    try:
        differences = model_differences(plan.model, describe(model, find_blocks(model, plan.model.layers)))
    except OffloadError as error:  # it has no such layers, or none at all
        raise PlanError(f"The plan is for another model: {error}") from None
    if differences:
        raise PlanError(f"The plan is for another model: {'; '.join(differences)}; make a plan for this one")


def describe(model: nn.Module, blocks: Sequence[Block]) -> ModelSpec:
    """What a plan says about a model."""
    counts = tuple(sum(p.numel() for p in block.parameters) for block in blocks)
    return ModelSpec(
        name=type(model).__name__,
        block=type(blocks[0].module).__name__,
        layer_parameters=counts,
        rest_parameters=sum(p.numel() for p in model.parameters()) - sum(counts),
        fingerprint=fingerprint((name, tuple(p.shape)) for name, p in model.named_parameters()),
    )


def _check(config: WindowConfig, blocks: Sequence[Block], model: nn.Module) -> None:
    count = len(blocks)
    stray = sorted(layer for layer in config.resident if not 0 <= layer < count)
    if stray:
        raise OffloadError(
            f"resident has layer {stray[0]}; {type(model).__name__} has layers 0 to {count - 1} "
            f"({blocks[0].name} to {blocks[-1].name})"
        )
    moving = count - len(config.resident)
    if config.slots < min(2, moving):
        raise OffloadError(
            f"window is {config.slots} with {moving} layers that move; expected at least 2: one computes while the "
            "next one arrives"
        )
    if config.prefetch is not None and config.prefetch < 0:
        raise OffloadError(f"prefetch is {config.prefetch}; expected 0 or more")


def _machine(model: nn.Module, deadline_s: float) -> Backend:
    """The GPU that the model, or what of it has been moved, is on; else the current one."""
    if not torch.cuda.is_available():
        return CpuBackend(deadline_s=deadline_s)
    there = (tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.device.type == "cuda")
    device = next(there, torch.device("cuda", torch.cuda.current_device()))
    return CudaBackend(device, deadline_s=deadline_s)


def _rest_of(model: nn.Module, optimizer: Optimizer, moving: Sequence[Layer]) -> list[nn.Parameter]:
    """What the optimizer trains of the model and does not move."""
    ours = {id(p) for layer in moving for p in layer.parameters}
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [p for p in model.parameters() if id(p) in trained - ours]


def _move_rest(model: nn.Module, optimizer: Optimizer, moving: Sequence[Layer], device: torch.device) -> None:
    """What does not move goes to the device for good; the state of what moves goes to the host."""
    ours = {id(p) for layer in moving for p in layer.parameters}
    for parameter in model.parameters():
        where = torch.device("cpu") if id(parameter) in ours else device
        if id(parameter) not in ours:
            parameter.data = parameter.data.to(device)
        if parameter.grad is not None:
            parameter.grad = parameter.grad.to(where)
        place_state(optimizer, parameter, where)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
