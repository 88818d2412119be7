"""What the launcher's injected code calls once a job has imported torch: apply a plan, or measure, without an edit.

The environment says what: TIGHTSHIP_OFFLOAD_PLAN names the plan, TIGHTSHIP_OFFLOAD_OPTIONAL=1 lets the job run without
it where it does not apply, and TIGHTSHIP_OFFLOAD_DEADLINE gives each wait so many seconds; TIGHTSHIP_OFFLOAD_MEASURE
names the file for a record of TIGHTSHIP_OFFLOAD_STEPS steps, after which the job is ended; with
TIGHTSHIP_OFFLOAD_SHORT=1 layers share memory meanwhile, however much there is. A plan that does not apply, or that
cannot go on, ends the job with one line and exit code 2.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from tightship_offload.errors import OffloadError
from tightship_offload.integrations.adapter import OneLine, fits, layers_stay, planned_part
from tightship_offload.integrations.state_in_place import leave_state_in_place
from tightship_offload.integrations.zero_grad import wait_for_no_update
from tightship_offload.job.lost_updates import warn_of_lost_updates
from tightship_offload.job.optimizer_watch import Move, on_move, on_optimizer
from tightship_offload.job.owner import holder_of, holders_of, is_alive
from tightship_offload.job.probe import Probe
from tightship_offload.job.small_memory import is_short, move_one_of_each, return_freed_memory, share_memory
from tightship_offload.plan.capabilities import SHORTAGE
from tightship_offload.plan.file import read_plan
from tightship_offload.plan.model import Clipping
from tightship_offload.runtime.apply import apply
from tightship_offload.runtime.blocks import find_blocks
from tightship_offload.runtime.clipping import clip_grad_norm_
from tightship_offload.runtime.engine import engine_of, has_engine
from tightship_offload.runtime.run_report import report_to_run

MEASURED_STEPS = 5


def arm() -> None:
    """Do what the environment says. Called once per process, after torch was imported."""
    plan, record = os.environ.get("TIGHTSHIP_OFFLOAD_PLAN"), os.environ.get("TIGHTSHIP_OFFLOAD_MEASURE")
    if record:
        steps = int(os.environ.get("TIGHTSHIP_OFFLOAD_STEPS", MEASURED_STEPS))
        _measure(Path(record), steps, short=os.environ.get("TIGHTSHIP_OFFLOAD_SHORT") == "1")
    elif plan:
        _apply(plan, optional=os.environ.get("TIGHTSHIP_OFFLOAD_OPTIONAL") == "1")


def _apply(path: str, *, optional: bool) -> None:
    try:
        plan, deadline_s = read_plan(path), _deadline_s()
    except OffloadError as error:
        _give_up(error, optional)
        return
    if plan.nvme is not None:
        return_freed_memory()
    done: list[Optimizer] = []
    refused: list[OffloadError] = []
    moves: list[tuple[weakref.ref[nn.Module], Move]] = []

    def met(optimizer: Optimizer) -> None:
        if done or refused:  # a job's other optimizers (of another model, or a copy) are its own
            return
        try:
            holders = holders_of(optimizer)
            model = next((one for one in holders if fits(one, plan)), None)
            if model is None and is_alive(lambda one: fits(one, plan)):
                return  # the plan's model has not met its optimizer yet
            if not holders:
                raise OffloadError(
                    f"The parameters of this {type(optimizer).__name__} are not all of one model; apply the plan "
                    "in the script: tightship_offload.apply(model, optimizer, plan)"
                )
            done.append(optimizer)
            model = model or holders[0]
            apply(model, optimizer, plan, deadline_s=deadline_s)
            wait_for_no_update()
            leave_state_in_place()
            report_to_run(engine_of(model), plan)
            _end_in_one_line()
            if plan.nvme is not None and (before := engine_of(model).steps_done):
                _say(f"goes on after step {before} of the training in {plan.nvme.folder}; for a new one remove that")
            why = engine_of(model).updates.why_not_in_one_pass
            if why is not None:
                _say(f"fp32 masters are updated by torch, in several passes over memory: {why}")
            if engine_of(model).updates.loops:
                _say(
                    f"{type(optimizer).__name__} was made without fused=True, so layers that move are updated by a "
                    "loop over operators, several times as slow; say fused=True in the script, or `tightship offload "
                    "plan --fused`"
                )
            warn_of_lost_updates(engine_of(model), _say)
        except OffloadError as error:
            refused.append(error)
            _give_up(error, optional)
        for moved, move in moves:
            if (one := moved()) is not None and not windowed(one):
                move(one)  # the layers, too, which stayed for the plan's sake
        moves.clear()

    def windowed(model: nn.Module) -> bool:
        return any(has_engine(part) for part in model.modules())

    def around(model: nn.Module, move: Move) -> AbstractContextManager[None]:
        if refused:
            return nullcontext()
        part = planned_part(model, plan) is None  # of a model that moves block by block
        whole = holder_of(model, lambda one: fits(one, plan)) if part else model
        if whole is None or (done and not windowed(whole)):
            return nullcontext()  # once the plan is applied, others like it (a teacher, an average) are the job's own
        try:
            stay = OneLine(plan).layers_stay(whole)
            if not done:
                moves.append((weakref.ref(model), move))
            return stay
        except OffloadError as error:
            refused.append(error)
            _give_up(error, optional)
            return nullcontext()

    on_optimizer(met)
    on_move(around)
    if plan.optimizer.clipping is not Clipping.NONE:
        # torch's reads every gradient on one thread and writes it again, and so takes every early update back
        _replace_clipping(clip_grad_norm_)


def _deadline_s() -> float | None:
    given = os.environ.get("TIGHTSHIP_OFFLOAD_DEADLINE")
    try:
        return float(given) if given else None
    except ValueError:
        raise OffloadError(f"TIGHTSHIP_OFFLOAD_DEADLINE is {given!r:.80}; expected a number of seconds") from None


def _end_in_one_line() -> None:
    """An error of ours that the script does not catch (a full disk, a wait without end) is one line, exit code 2."""
    real = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, OffloadError):
            _end(str(error), 2)
        real(kind, error, trace)

    sys.excepthook = hook


def _measure(record: Path, steps: int, *, short: bool) -> None:
    """:param short: memory is known to be short; otherwise that is estimated once the model is there."""
    started: list[Probe] = []
    if short:
        return_freed_memory()

    def met(optimizer: Optimizer) -> None:
        if started:
            return
        try:
            holders = holders_of(optimizer)
            if not holders:
                raise OffloadError("The optimizer's parameters are not all of one model; measure a factory instead")
            lacks = short or is_short(holders[0])
            if lacks:
                return_freed_memory()
            started.append(Probe(holders[0], optimizer, steps, done, short=lacks))
        except OffloadError as error:
            _end(str(error), 2)

    def done(measured: dict[str, Any]) -> None:
        draft = record.with_name(record.name + ".new")
        draft.write_text(json.dumps(measured), encoding="utf-8")
        draft.replace(record)
        _end("", 0)

    @contextmanager
    def around(model: nn.Module, move: Move) -> Iterator[None]:
        """A model that does not fit where it moves: one layer of each kind goes there."""
        try:
            blocks = find_blocks(model)
        except OffloadError:  # of a part, or of another model
            yield
            return
        share_memory(blocks)
        with layers_stay([block.module for block in blocks]):
            yield
        move_one_of_each(blocks, move)

    on_optimizer(met)
    if short:
        on_move(around)
    _watch_clipping(started)
    _mark_shortage(record.with_name(SHORTAGE))


def _mark_shortage(mark: Path) -> None:
    """Leave a file where the script ends for lack of memory: whoever measures tries again with less."""
    real = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator: " in str(error):
            mark.touch()
        real(kind, error, trace)

    sys.excepthook = hook


def _watch_clipping(started: list[Probe]) -> None:
    real = torch.nn.utils.clip_grad_norm_

    def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        if not started:
            return real(parameters, max_norm, *args, **kwargs)
        return started[0].clip(lambda: real(parameters, max_norm, *args, **kwargs), float(max_norm))

    _replace_clipping(clip)


def _replace_clipping(clip: Callable[..., Any]) -> None:
    """Before the script imports anything: what it has imported by name, nobody replaces any more."""
    torch.nn.utils.clip_grad_norm_ = clip
    torch.nn.utils.clip_grad.clip_grad_norm_ = clip


def _give_up(error: OffloadError, optional: bool) -> None:
    if optional:
        _say(f"{error}; the job runs without the plan")
        return
    _end(str(error), 2)


def _end(text: str, code: int) -> NoReturn:
    """End the process now: the job's own handlers must not make another error of it."""
    if text:
        _say(text)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed, or nobody reads it any more
    os._exit(code)


def _say(text: str) -> None:
    line = "".join(c if c.isprintable() else " " for c in text)[:1000]
    try:
        sys.stderr.write(f"tightship: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return
