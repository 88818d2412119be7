"""A plan in words: why it is so, what it will cost, and what would make it faster."""

from __future__ import annotations

from tightship_offload.plan.model import Bottleneck, Clipping, Plan, Prediction, Recompute, UpdateOrder, UpdateStart

_WAITS = {
    Bottleneck.H2D: "weights on their way to the device",
    Bottleneck.D2H: "gradients on their way to the host",
    Bottleneck.CPU_UPDATE: "updates on the CPU",
    Bottleneck.SLOT: "a free slot",
    Bottleneck.CLIPPING: "the norm of all gradients",
}


def explain(plan: Plan) -> list[str]:
    """Sentences, one per line."""
    said = [_window(plan), _updates(plan), *_files(plan)]
    if plan.loop.recompute is Recompute.LAYER:
        said.append("The loop has to checkpoint each layer: its activations are computed again in backward.")
    if plan.loop.micro_batches > 1:
        said.append(f"A step has {plan.loop.micro_batches} micro-batches, whose gradients add up.")
    if plan.prediction is not None:
        said += _prediction(plan, plan.prediction)
        said += [f"Faster: {way}" for way in faster(plan)]
    else:
        said.append("It predicts nothing: it was written by hand. `tightship offload plan` makes one that does.")
    return said


def faster(plan: Plan) -> list[str]:
    """What would shorten the step, by what it waits for."""
    prediction = plan.prediction
    if prediction is None:
        return []
    hardware, ways = plan.hardware, []
    match prediction.bottleneck:
        case Bottleneck.COMPUTE:
            ways.append("nothing in the window: the device computes nearly all the time.")
            if plan.loop.recompute is Recompute.LAYER:
                ways.append("without recomputation, if more device memory can be had.")
        case Bottleneck.CPU_UPDATE | Bottleneck.CLIPPING:
            ways.append("more tokens per step (a larger batch or more accumulation): updates cost the same each step.")
            ways.append("more device memory, for more resident layers: those are updated there.")
            if hardware is not None and hardware.cores > max(hardware.adam_params_per_s):
                ways.append(f"more of the {hardware.cores} cores for updates; the rates were measured with fewer.")
        case Bottleneck.H2D | Bottleneck.D2H:
            ways.append("more tokens per micro-batch: each one moves all weights once more.")
            ways.append("more device memory, for more resident layers: those do not travel.")
            if plan.precision.weights.bytes == 4:
                ways.append("bf16 weights: half the bytes to move.")
        case Bottleneck.SLOT:
            ways.append("one slot more.")
    return ways


def _window(plan: Plan) -> str:
    count, resident = plan.layer_count, plan.window.resident
    moving = len(plan.moving)
    if not moving:
        return f"All {count} layers of {plan.model.name} stay on the device: they fit."
    slots = plan.window.slots
    text = f"{moving} of {count} layers of {plan.model.name} take turns in {slots} slots on the device"
    text += f"; up to {plan.window.prefetch} of them arrive while one computes."
    if resident:
        text += f" {_listed(resident)} {'never moves' if len(resident) == 1 else 'never move'}."
    return text


def _files(plan: Plan) -> list[str]:
    if plan.nvme is None:
        return []
    count = len(plan.nvme.layers)
    size = (
        ""
        if plan.prediction is None
        else f", {_gib(plan.prediction.nvme_bytes)} with their undo log and what does not move"
    )
    return [
        f"Weights and optimizer state of {count} layers are in files in {plan.nvme.folder}{size}; host memory holds "
        "their gradients. A run that finds a training there goes on with it."
    ]


def _updates(plan: Plan) -> str:
    optimizer, count = plan.optimizer, plan.layer_count
    on_device, streamed = len(optimizer.gpu_resident), len(optimizer.gpu_streamed)
    on_cpu = count - on_device - streamed
    parts = []
    if on_cpu:
        which = "layer is" if on_cpu == 1 else "layers are"
        parts.append(f"{on_cpu} {which} updated on the CPU, where the optimizer state lives")
    if streamed:
        parts.append(f"{streamed} {'streams' if streamed == 1 else 'stream'} through the device to be updated there")
    if on_device:
        parts.append(f"{on_device} {'is' if on_device == 1 else 'are'} updated on the device")
    text = "; ".join(parts) + "."
    if on_cpu:
        text += (
            " Updates begin with optimizer.step(), so that clipping, accumulation and every edit of gradients keep "
            "their meaning, and overlap the next forward"
            if optimizer.start is UpdateStart.AFTER_STEP
            else " Updates begin during backward, as the plan declares that the loop allows"
        )
        if optimizer.order is UpdateOrder.NEXT_USE:
            text += ", the layers that it needs first going first: nothing is ever computed with old weights"
        text += "."
    if on_cpu and optimizer.fused:
        text += " They take the optimizer's fused form, also where the script does not say fused=True."
    if optimizer.clipping is Clipping.SPECULATIVE:
        text += " What clipping would have changed is rolled back and done again."
    return text


def _prediction(plan: Plan, prediction: Prediction) -> list[str]:
    step, share = prediction.step_ns, prediction.share_frac
    baseline = "with the same recomputation" if plan.loop.recompute is Recompute.LAYER else "without recomputation"
    said = [
        f"A step takes {_seconds(step.value)} ({_seconds(step.low)} to {_seconds(step.high)}, simulated): "
        f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%}) of the speed without offload on a device that is "
        f"large enough, {baseline}.",
        f"It needs {_gib(prediction.device_bytes)} on the device and {_gib(prediction.host_bytes)} in host memory, "
        f"{_gib(prediction.pinned_bytes)} of it pinned.{_together(plan, prediction)}",
        f"Each step moves {_gib(prediction.h2d_bytes)} to the device and {_gib(prediction.d2h_bytes)} back.",
    ]
    waits = {Bottleneck(cause): ns for cause, ns in prediction.waits_ns.items() if ns and cause in set(Bottleneck)}
    if waits:
        listed = ", ".join(
            f"{_seconds(ns)} for {_WAITS[cause]}"
            for cause, ns in sorted(waits.items(), key=lambda item: -item[1])
            if cause in _WAITS
        )
        said.append(f"In a step the device waits {listed}.")
    return said


def _together(plan: Plan, prediction: Prediction) -> str:
    if plan.hardware is None or plan.hardware.device != "cpu":
        return ""
    return f" Host memory plays the device: together {_gib(prediction.device_bytes + prediction.host_bytes)}."


def _listed(layers: tuple[int, ...]) -> str:
    """`Layers 0 to 3 and 7`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    if len(texts) > 8:
        texts = [*texts[:8], f"{sum(len(run) for run in runs[8:])} more"]
    words = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
    return f"{'Layer' if len(layers) == 1 else 'Layers'} {words}"


def _seconds(ns: float) -> str:
    for unit, width in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= width:
            return f"{ns / width:.3g} {unit}"
    return f"{ns:.0f} ns"


def _gib(size: float) -> str:
    for unit, width in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= width:
            return f"{size / width:.1f} {unit}"
    return f"{size:.0f} B"
