"""Times a few steps of an ordinary training loop, layer by layer, from hooks; changes nothing that it computes.

[Note: where a layer's backward begins and ends] A layer's backward begins when the gradient of its output is there, and
ends when that of its input is: hooks of those two tensors. Where the input needs no gradient, it ends where the next
thing begins. Times are marks on the compute stream, so that nothing waits for the device but at the end of a step.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tightship_offload.job.passages import OUTSIDE, Passage, tensors_in, watch
from tightship_offload.job.saved_bytes import SavedBytes
from tightship_offload.job.small_memory import drop_gradients, process_bytes, share_memory
from tightship_offload.runtime.apply import describe
from tightship_offload.runtime.blocks import Block, find_blocks
from tightship_offload.runtime.part_of_optimizer import bare_step, is_open, part_of
from tightship_offload.runtime.saved_tensors import Hook

_TRIED = 64
"""Elements of a parameter on which an optimizer is tried."""
WARM_UP = 2
"""Steps that are not timed: allocators, autotuning and optimizer state come into being in them."""


class Probe:
    """Times the steps of one model and its optimizer, then calls `done` once with the record."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        steps: int,
        done: Callable[[dict[str, Any]], None],
        *,
        short: bool = False,
    ) -> None:
        """:param short: memory is short; see [Note: one layer's memory].
        :raises OffloadError: the model has no repeated blocks.
        """
        self.model = model
        self.blocks: list[Block] = find_blocks(model)
        self._optimizer = optimizer
        self._process_bytes = process_bytes(model)
        self._short = short
        if short:
            share_memory(self.blocks)
            drop_gradients(self.blocks)
        self._wanted = steps
        self._done = done
        self._step = 0
        self._marks: list[tuple[str, int, Any]] = []
        self._steps: list[list[tuple[str, int, int]]] = []
        self._between: list[int] = []
        self._stepped_ns = 0
        self._cuda = False
        self._kept = SavedBytes(lambda tensor: tensor.untyped_storage().data_ptr())
        self._batch: tuple[int, int | None] | None = None
        self._recomputes = False
        self._saving: Any = None
        self.clip_norm: float | None = None
        self._handles: list[Any] = [
            model.register_forward_pre_hook(Hook(self._before_model), with_kwargs=True),
            model.register_forward_hook(Hook(self._after_model)),
            optimizer.register_step_pre_hook(lambda *_: self._mark("step")),
            optimizer.register_step_post_hook(lambda *_: self._stepped()),
            *watch(self.blocks, self._passed),
        ]

    # ---- marks -----------------------------------------------------------------------------------------------------

    def _mark(self, what: str, layer: int = -1) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append((what, layer, event))
        else:
            self._marks.append((what, layer, time.perf_counter_ns()))

    def _before_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._kept.weights:
            self._look()
        if self._step > WARM_UP and not self._marks:
            self._between.append(time.perf_counter_ns() - self._stepped_ns)
        self._mark("forward")
        if self._batch is None:
            self._batch = batch_of((args, kwargs))
        if self._step == WARM_UP - 1 and not self._kept.by_layer:
            self._saving = torch.autograd.graph.saved_tensors_hooks(
                torch.compiler.disable(self._kept.keep),  # type: ignore[no-untyped-call]
                torch.compiler.disable(lambda tensor: tensor),  # type: ignore[no-untyped-call]
            )
            self._saving.__enter__()

    def _look(self) -> None:
        """At the first forward: a loop may move its model after the optimizer is made."""
        self._cuda = any(p.is_cuda for p in self.model.parameters())
        self._kept.know(self.model.parameters())
        self._marks.clear()  # they may be of the other clock

    def _after_model(self, module: nn.Module, args: Any, output: Any) -> None:
        self._mark("returned")
        self._stop_counting()

    def _passed(self, what: Passage, layer: int, given: list[Tensor]) -> None:
        self._recomputes |= what is Passage.RECOMPUTE
        if what is not Passage.RECOMPUTE or self._step == WARM_UP - 1:
            self._kept.passed(what, layer, given)
        self._mark(what, layer)

    def clip(self, real: Callable[[], Any], max_norm: float) -> Any:
        """Call the loop's clipping and time it."""
        self.clip_norm = max_norm
        self._mark("clip")
        result = real()
        self._mark("clipped")
        return result

    def _stop_counting(self) -> None:
        if self._saving is not None:
            self._saving.__exit__(None, None, None)
            self._saving = None
        self._kept.end_forward()

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _stepped(self) -> None:
        self._mark("stepped")
        self._stop_counting()
        marks, self._marks = self._marks, []
        if self._cuda:
            torch.cuda.synchronize()
            first = marks[0][2]
            timed = [(what, layer, round(first.elapsed_time(at) * 1e6)) for what, layer, at in marks]
        else:
            timed = [(what, layer, int(at)) for what, layer, at in marks]
        if self._step >= WARM_UP:
            self._steps.append(timed)
        self._step += 1
        self._stepped_ns = time.perf_counter_ns()
        if len(self._steps) == self._wanted + 1:
            self._steps.pop()  # taken only for what lies between steps
            for handle in self._handles:
                handle.remove()
            self._done(self.record())

    def record(self) -> dict[str, Any]:
        """Medians over the steps, as plain data. Times in ns, sizes in bytes, of one micro-batch."""
        spans = [_spans(step) for step in self._steps]
        names = sorted({name for one in spans for name in one})
        micro_batches = round(median(sum(what == "forward" for what, _, _ in step) for step in self._steps))
        medians = {name: median(one.get(name, 0) for one in spans) for name in names}
        totals = [step[-1][2] - step[0][2] for step in self._steps]
        model = describe(self.model, self.blocks)
        return {
            "model": model.as_mapping(),
            "forward_ns": [medians.get(f"{Passage.FORWARD} {i}", 0) / micro_batches for i in range(len(self.blocks))],
            "backward_ns": [medians.get(f"{Passage.BACKWARD} {i}", 0) / micro_batches for i in range(len(self.blocks))],
            "activation_bytes": [self._kept.by_layer[i] for i in range(len(self.blocks))],
            "input_bytes": [self._kept.inputs.get(i, 0) for i in range(len(self.blocks))],
            "trainable": [sum(p.numel() for p in b.parameters if p.requires_grad) for b in self.blocks],
            "rest_trainable": sum(p.numel() for p in self.model.parameters() if p.requires_grad)
            - sum(p.numel() for b in self.blocks for p in b.parameters if p.requires_grad),
            "rest_activation_bytes": self._kept.by_layer[OUTSIDE],
            "before_forward_ns": medians.get("before", 0) / micro_batches,
            "head_ns": medians.get("head", 0) / micro_batches,
            "after_backward_ns": medians.get("after", 0) / micro_batches,
            "clip_ns": medians.get("clip", 0),
            "update_ns": medians.get("update", 0),
            "between_steps_ns": median(self._between),
            "step_ns": median(totals),
            "spread_frac": (max(totals) - min(totals)) / 2 / median(totals),
            "micro_batches": micro_batches,
            "steps": len(self._steps),
            "batch": self._batch[0] if self._batch else None,
            "tokens": self._batch[1] if self._batch else None,
            "recomputes": self._recomputes,
            "dtype": str(self.blocks[0].parameters[0].dtype).removeprefix("torch."),
            "state_bytes_per_parameter": _state_bytes(self._optimizer),
            "process_bytes": self._process_bytes,
            "short": self._short,
            "clip_norm": self.clip_norm,
            "update_form": _form(self._optimizer),
            "device": torch.cuda.get_device_name() if self._cuda else "cpu",
            "threads": torch.get_num_threads(),
        }


def _spans(step: list[tuple[str, int, int]]) -> dict[str, int]:
    """Where the time of a step went, by name."""
    spent: dict[str, int] = defaultdict(int)
    label, since = "", step[0][2]
    for what, layer, at in step:
        if label:
            spent[label] += at - since
        since = at
        match what:
            case "forward":
                label = "before"
            case Passage.FORWARD | Passage.BACKWARD:
                label = f"{what} {layer}"
            case Passage.RECOMPUTE:
                label = f"{Passage.BACKWARD} {layer}"
            case Passage.RETURNED | "returned":
                label = "head"
            case Passage.BACKWARD_ENDED if label == f"{Passage.BACKWARD} {layer}":
                label = "after"
            case "clip" | "clipped" | "step":
                label = {"clip": "clip", "clipped": "after", "step": "update"}[what]
    return spent


def batch_of(given: Any) -> tuple[int, int | None] | None:
    """(samples, tokens) of a micro-batch, from the first tensor that the model gets; tokens where it is of integers."""
    for tensor in tensors_in(given):
        if tensor.dim():
            whole = not tensor.is_floating_point() and tensor.dim() > 1
            return int(tensor.shape[0]), (int(tensor.numel()) if whole else None)
    return None


def _state_bytes(optimizer: Optimizer) -> int:
    """Of an optimizer's state per parameter, to the nearest byte; single numbers do not count."""
    parameters = state = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in optimizer.state:
                parameters += parameter.numel()
                tensors = [t for t in optimizer.state[parameter].values() if isinstance(t, Tensor) and t.dim()]
                state += sum(t.numel() * t.element_size() for t in tensors)
    return round(state / parameters) if parameters else _tried_state_bytes(optimizer)


def _tried_state_bytes(optimizer: Optimizer) -> int:
    """Of an optimizer that has updated nothing yet: what one update of a small parameter makes."""
    for group in optimizer.param_groups:
        small = nn.Parameter(torch.ones(_TRIED, dtype=group["params"][0].dtype))
        small.grad = torch.full_like(small, 1e-3)
        state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)
        try:
            part = part_of(optimizer, type(optimizer), [{**group, "params": [small]}], state)
            bare_step(type(optimizer))(part)
        except Exception:  # one for GPUs alone, say: it is taken for an Adam
            return 2 * small.element_size()
        return sum(t.element_size() for t in state[small].values() if isinstance(t, Tensor) and t.dim())
    return 0


def _form(optimizer: Optimizer) -> str:
    """How torch updates on a CPU: `fused`, by a `loop`, or by one because the script leaves the form `open`."""
    if all(group.get("fused") for group in optimizer.param_groups):
        return "fused"
    return "open" if any(is_open(group) for group in optimizer.param_groups) else "loop"
