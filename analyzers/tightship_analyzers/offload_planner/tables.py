"""The planner's results as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from tightship_analyzers.offload_planner.planner import Option
from tightship_analyzers.offload_planner.plans import prediction_of
from tightship_analyzers.offload_planner.profile import LayerCost, Profile
from tightship_offload.plan.model import HardwareSpec, Plan, Prediction
from tightship_platform.commands.terminal import Column, print_table
from tightship_platform.results.plan_answer import PlanAlternative
from tightship_platform.units import format_bytes, format_frac, format_ns, plural


def print_hardware(hardware: HardwareSpec) -> None:
    """What a machine can do."""
    adam = ", ".join(f"{_rate(rate)} with {threads}" for threads, rate in sorted(hardware.adam_params_per_s.items()))
    rows = [
        ("device", hardware.device, format_bytes(hardware.device_bytes)),
        ("host memory", f"{hardware.cores} cores", format_bytes(hardware.host_bytes)),
        ("host to device", "alone", f"{hardware.h2d_bytes_per_s / 1e9:.1f} GB/s"),
        ("host to device", "both ways at once", f"{hardware.h2d_duplex_bytes_per_s / 1e9:.1f} GB/s"),
        ("device to host", "alone", f"{hardware.d2h_bytes_per_s / 1e9:.1f} GB/s"),
        ("device to host", "both ways at once", f"{hardware.d2h_duplex_bytes_per_s / 1e9:.1f} GB/s"),
        ("Adam on the CPU", "parameters/s by threads", adam),
    ]
    if hardware.loop_adam_params_per_s is not None:
        rows.append(("… not fused", "parameters/s", _rate(hardware.loop_adam_params_per_s)))
    if hardware.master_adam_params_per_s is not None:
        rows.append(("… of bf16 with fp32 masters", "parameters/s", _rate(hardware.master_adam_params_per_s)))
    if hardware.norm_bytes_per_s is not None:
        rows.append(("norms in host memory", "", f"{hardware.norm_bytes_per_s / 1e9:.1f} GB/s"))
    if hardware.device_adam_params_per_s is not None:
        rows.append(("Adam on the device", "parameters/s", _rate(hardware.device_adam_params_per_s)))
    if hardware.flops_per_s is not None:
        rows.append(("matrix products", "", f"{hardware.flops_per_s / 1e12:.3g} TFLOP/s"))
    print_table([Column("WHAT"), Column("HOW"), Column("FIGURE", right=True)], rows, empty="nothing measured")


def print_profile(profile: Profile) -> None:
    """The layers of a profile; like ones in a row stand on one line."""
    runs: list[tuple[int, int]] = []
    for number, layer in enumerate(profile.layers):
        if runs and _alike(profile.layers[runs[-1][0]], layer):
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    rows = []
    for first, last in runs:
        part = profile.layers[first : last + 1]
        rows.append(
            (
                str(first) if first == last else f"{first}–{last}",
                f"{part[0].parameters:,}",
                format_ns(round(sum(one.forward_ns for one in part) / len(part))),
                format_ns(round(sum(one.backward_ns for one in part) / len(part))),
                format_bytes(part[0].activation_bytes),
            )
        )
    rest = profile.rest
    after_ns = rest.after_forward_ns + rest.before_backward_ns
    rows.append(("rest", f"{rest.parameters:,}", format_ns(after_ns), "–", format_bytes(rest.activation_bytes)))
    columns = [Column("LAYER", whole=True)]
    columns += [Column(name, right=True) for name in ("PARAMETERS", "FORWARD", "BACKWARD", "ACTIVATIONS")]
    print_table(columns, rows, empty="no layer")
    for note in profile.notes:
        Console(stderr=True, highlight=False).print(Text(note, style="dim"), soft_wrap=True)


def print_alternatives(options: Mapping[str, Option]) -> None:
    """Options by name, one line each."""
    rows = []
    for name, option in options.items():
        row = alternative_of(option)
        rows.append(
            (
                name,
                format_ns(row.step_ns),
                format_frac(row.share_frac),
                row.slots,
                row.resident,
                row.recompute,
                row.micro_batches,
                format_bytes(row.device_bytes),
                format_bytes(row.host_bytes),
                row.bottleneck,
            )
        )
    columns = [Column("PLAN", whole=True), Column("STEP", right=True), Column("OF FULL SPEED", right=True)]
    columns += [Column("SLOTS", right=True), Column("RESIDENT", right=True), Column("RECOMPUTE", spare=True)]
    columns += [Column("MICRO-BATCHES", right=True, spare=True), Column("DEVICE", right=True)]
    columns += [Column("HOST", right=True), Column("BOTTLENECK")]
    print_table(columns, rows, empty="nothing fits")


def alternative_of(option: Option) -> PlanAlternative:
    """An option as it is listed."""
    one = option.candidate
    return PlanAlternative(
        step_ns=option.step_ns,
        share_frac=prediction_of(option).share_frac.value,
        slots=one.slots,
        resident=len(one.resident),
        gpu_streamed=len(one.gpu_streamed),
        recompute=one.recompute.value,
        micro_batches=one.micro_batches,
        device_bytes=one.memory.device,
        host_bytes=one.memory.host,
        pinned_bytes=one.memory.pinned,
        bottleneck=option.result.bottleneck.value,
    )


def print_simulation(option: Option) -> None:
    """What each resource does in a step."""
    result = option.result
    rows = [
        (
            cause.value,
            format_ns(result.busy_ns[cause] // result.steps),
            format_frac(result.busy_ns[cause] / result.window_ns),
        )
        for cause in result.busy_ns
        if result.busy_ns[cause]
    ]
    print_table([Column("RESOURCE"), Column("BUSY", right=True), Column("OF THE STEP", right=True)], rows, empty="idle")
    waits = [
        (cause.value, format_ns(ns // result.steps), format_frac(ns / result.window_ns))
        for cause, ns in result.waits_ns.items()
        if ns
    ]
    print_table(
        [Column("DEVICE WAITS FOR"), Column("TIME", right=True), Column("OF THE STEP", right=True)],
        waits,
        empty="The device never waits.",
    )


def print_lines(lines: Iterable[str]) -> None:
    """Sentences, wrapped on a terminal."""
    console = Console(highlight=False)
    for line in lines:
        console.print(Text(line), soft_wrap=not console.is_terminal)


def heading(plan: Plan) -> str:
    """The one line for a finished plan."""
    prediction: Prediction | None = plan.prediction
    if prediction is None:
        resident = plural(len(plan.window.resident), "resident layer")
        return f"{plan.model.name}: {plural(plan.window.slots, 'slot')}, {resident}"
    return (
        f"{plan.model.name}: a step of {format_ns(round(prediction.step_ns.value))}, "
        f"{format_frac(prediction.share_frac.value)} of the speed without offload, "
        f"with {format_bytes(prediction.device_bytes)} of device memory"
    )


def _alike(a: LayerCost, b: LayerCost) -> bool:
    same = (a.parameters, a.activation_bytes) == (b.parameters, b.activation_bytes)
    return same and abs(a.forward_ns - b.forward_ns) * 5 <= max(a.forward_ns, b.forward_ns)


def _rate(rate: float) -> str:
    return f"{rate / 1e9:.2f} G" if rate >= 1e9 else f"{rate / 1e6:.0f} M"
