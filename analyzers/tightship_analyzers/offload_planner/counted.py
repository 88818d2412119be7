"""A profile of a model that fits nowhere: its FLOPs and bytes are counted with tensors that have no storage.

A factory is a function without arguments, `train:make`, that returns (model, batch) or (model, batch, loss): the batch
is what the model is called with (a tensor, a tuple or a dict), `loss` maps its output to a number. It is called in a
its own process, where every tensor it makes is fake: a model of any size takes a few hundred MB.

python -m tightship_analyzers.offload_planner.counted train:make     # JSON on stdout
"""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightship_analyzers.offload_planner.profile import LayerCost, Origin, Profile, RestCost
from tightship_offload.errors import PlanError
from tightship_offload.plan.model import Dtype, HardwareSpec, ModelSpec, Precision, Recompute
from tightship_platform.errors import TightshipError

if TYPE_CHECKING:
    from tightship_offload.job.passages import Passage

TIMEOUT_S = 600
_DTYPES = {"float32": Dtype.FP32, "bfloat16": Dtype.BF16, "float16": Dtype.FP16}


class CannotCount(TightshipError):
    """The factory failed, or its model is not one of repeated blocks."""


def profile_of_factory(factory: str, hardware: HardwareSpec) -> Profile:
    """The profile of the model that `module:function` makes.

    :raises CannotCount: it cannot be called, or its model cannot be counted.
    """
    if hardware.flops_per_s is None:
        raise CannotCount("The machine's FLOP/s are not known; measure it again with `tightship offload measure`")
    command = [sys.executable, "-m", __name__, factory]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise CannotCount(f"Counting {factory!r} took more than {TIMEOUT_S} s") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1][:400]
        raise CannotCount(f"Factory {factory!r} cannot be counted: {said}")
    try:
        return _profile(json.loads(done.stdout.strip().splitlines()[-1]), hardware, hardware.flops_per_s)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CannotCount(
            f"Factory {factory!r} printed something that is not a count ({type(error).__name__}: {error})"
        ) from None


def _profile(record: dict[str, Any], hardware: HardwareSpec, flops_per_s: float) -> Profile:
    def took_ns(flops: int) -> int:
        return round(flops / flops_per_s * 1e9)

    model = ModelSpec.from_mapping(record["model"], "model")
    weights = _DTYPES.get(record["dtype"])
    if weights is None:
        raise PlanError(f"The model's weights are {record['dtype']!r}; plans know float32, bfloat16 and float16")
    return Profile(
        model=model,
        layers=tuple(
            LayerCost(
                forward_ns=took_ns(one["forward_flops"]),
                backward_ns=took_ns(one["backward_flops"]),
                parameters=one["parameters"],
                trainable=one["trainable"],
                activation_bytes=max(one["activation_bytes"], one["input_bytes"]),
                input_bytes=one["input_bytes"],
            )
            for one in record["layers"]
        ),
        rest=RestCost(
            after_forward_ns=took_ns(record["rest_forward_flops"]),
            before_backward_ns=took_ns(record["rest_backward_flops"]),
            parameters=model.rest_parameters or 0,
            trainable=record["rest_trainable"],
            activation_bytes=record["rest_activation_bytes"],
        ),
        # 16-bit training of a model that size keeps fp32 masters.
        precision=Precision(weights=weights, master=Dtype.FP32, gradients=weights),
        recompute=Recompute.LAYER if record["recomputes"] else Recompute.NONE,
        batch=record["batch"],
        tokens=record["tokens"],
        origin=Origin.COUNTED,
        notes=("Times are counted matrix FLOPs over this machine's best rate; other operators come on top.",),
        hardware=hardware,
    )


def count(make: Callable[[], Any]) -> dict[str, Any]:
    """Call a factory with fake tensors, run one forward and backward, and count, as plain data."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd.graph import saved_tensors_hooks
    from torch.utils.flop_counter import FlopCounterMode

    from tightship_offload.job.passages import OUTSIDE, Passage, watch
    from tightship_offload.job.probe import batch_of
    from tightship_offload.job.saved_bytes import SavedBytes
    from tightship_offload.runtime.apply import describe
    from tightship_offload.runtime.blocks import find_blocks

    with FakeTensorMode(allow_non_fake_inputs=True):
        model, batch, *more = make()
        loss_of = more[0] if more else _first_number
        blocks = find_blocks(model)
        kept = SavedBytes(lambda tensor: tensor.untyped_storage()._cdata)
        kept.know(model.parameters())
        with FlopCounterMode(display=False) as counter:
            flops = _Flops(counter.get_total_flops)

            def passed(what: Passage, layer: int, given: list[Any]) -> None:
                kept.passed(what, layer, given)
                flops.passed(what, layer)

            watch(blocks, passed)
            with saved_tensors_hooks(kept.keep, lambda tensor: tensor):
                loss = loss_of(_call(model, batch))
            kept.end_forward()
            flops.passed(Passage.BACKWARD_ENDED, OUTSIDE)
            loss.backward()
            flops.passed(Passage.BACKWARD_ENDED, OUTSIDE)
        layers = []
        for number, block in enumerate(blocks):
            forward_flops = flops.of[Passage.FORWARD, number]
            layers.append(
                {
                    "forward_flops": forward_flops,
                    # Of outputs that hooks do not reach nobody sees the backward: it is taken for twice the forward.
                    "backward_flops": flops.of[Passage.BACKWARD, number] or 2 * forward_flops,
                    "parameters": sum(p.numel() for p in block.parameters),
                    "trainable": sum(p.numel() for p in block.parameters if p.requires_grad),
                    "activation_bytes": kept.by_layer[number],
                    "input_bytes": kept.inputs.get(number, 0),
                }
            )
        spec = describe(model, blocks)
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        samples, tokens = batch_of(batch) or (None, None)
        backward_flops = sum(count for (what, _), count in flops.of.items() if what is Passage.BACKWARD)
        return {
            "model": spec.as_mapping(),
            "layers": layers,
            "recomputes": any(what is Passage.RECOMPUTE for what, _ in flops.of),
            "rest_forward_flops": flops.of[Passage.FORWARD, OUTSIDE],
            "rest_backward_flops": max(0, backward_flops - sum(one["backward_flops"] for one in layers)),
            "rest_trainable": trainable - sum(one["trainable"] for one in layers),
            "rest_activation_bytes": kept.by_layer[OUTSIDE],
            "dtype": str(blocks[0].parameters[0].dtype).removeprefix("torch."),
            "batch": samples,
            "tokens": tokens,
        }


class _Flops:
    """By what is done (forward, backward, or forward again) and layer."""

    def __init__(self, total: Callable[[], int]) -> None:
        """:param total: how many there were so far."""
        from tightship_offload.job.passages import OUTSIDE, Passage

        self.of: defaultdict[tuple[Passage, int], int] = defaultdict(int)
        self._total = total
        self._booked = 0
        self._doing = Passage.FORWARD, OUTSIDE

    def passed(self, what: Passage, layer: int) -> None:
        """What was counted so far is of what was done so far."""
        from tightship_offload.job.passages import OUTSIDE, Passage

        total = self._total()
        self.of[self._doing] += total - self._booked
        self._booked = total
        match what:
            case Passage.RETURNED:
                self._doing = Passage.FORWARD, OUTSIDE
            case Passage.RECOMPUTED:
                self._doing = Passage.BACKWARD, layer
            case Passage.BACKWARD_ENDED:
                self._doing = Passage.BACKWARD, OUTSIDE
            case _:
                self._doing = what, layer


def _call(model: Any, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, list | tuple) else model(batch)


def _first_number(output: Any) -> Any:
    """A loss for who gave none: the output's own, or the mean of its first tensor of floats."""
    from tightship_offload.job.passages import tensors_in

    own = getattr(output, "loss", None)
    if own is not None:
        return own
    first = next(t for t in tensors_in(output) if t.is_floating_point())
    return first.float().mean()


def _main(factory: str) -> int:
    """Count in this process; what goes wrong is one line on stderr."""
    module, _, name = factory.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            record = count(getattr(importlib.import_module(module), name))
    except Exception as error:  # of the user's own code: whatever it is, the parent shows it in one line
        sys.stderr.write(f"\n{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    sys.stdout.write("\n" + json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
