"""Whether two runs may be compared: the same work on the same devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

from tightship_platform.database.models import Run
from tightship_platform.errors import Conflict
from tightship_platform.ingest.actions.steps import RunSteps
from tightship_platform.units import plural

SIZES = {
    "batch": ("batch", "batch-size", "per-device-train-batch-size", "micro-batch-size", "global-batch-size"),
    "tokens": ("tokens", "seq-len", "seq-length", "sequence-length", "max-seq-length", "block-size"),
}
"""What a step's work is, and the labels and options of a command that say how much of it there is."""
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_SIZE = re.compile(r"\d{1,15}")


def require_alike(before: Run, after: Run, steps: tuple[RunSteps, RunSteps]) -> list[str]:
    """Accept two runs of which a step is the same work on the same devices; what of that nobody knows, in words.

    :raises Conflict: they are one run, of two workflows, simulated one alone, on other devices, of other ranks, of
        other batches or sequences, or a run counted no step.
    """
    if before.id == after.id:
        raise Conflict(f"Both are run {before.key}; name two runs of one workflow, such as @NAME~1 and @NAME")
    if before.workflow_id != after.workflow_id:
        names = f"{before.workflow.name!r} and {after.workflow.name!r}"
        raise Conflict(
            f"Runs {before.key} and {after.key} are of two workflows, {names}; name two runs of one workflow"
        )
    for run, counted in zip((before, after), steps, strict=True):
        if not counted.ranks:
            raise Conflict(f"Run {run.key} counted no steps, so that nothing can be compared; see `tightship show`")
        if not counted.devices:
            raise Conflict(
                f"Nobody has seen run {run.key} hold a device, so that nothing can be compared; run an agent there"
            )
    _same(before, after, "devices", *(_named(one) for one in steps))
    _same(before, after, "ranks", *(plural(one.ranks, "rank") for one in steps))
    _same(before, after, "origin", *("simulated" if run.simulated else "measured" for run in (before, after)))
    unknown = []
    for size in SIZES:
        values = [_size(run, size) for run in (before, after)]
        if None in values:
            unknown.append(size)
        else:
            _same(before, after, size, *map(str, values))
    said = "neither labels nor options of both commands say the {}: they are taken to be the same"
    return [said.format(" or the ".join(unknown))] if unknown else []


def _same(before: Run, after: Run, what: str, first: str, second: str) -> None:
    if first != second:
        raise Conflict(
            f"Runs {before.key} and {after.key} are not alike ({what}: {first} before, {second} after); "
            "compare runs of the same devices, ranks, batch and tokens"
        )


def _named(steps: RunSteps) -> str:
    return ", ".join(f"{count} × {name}" for name, count in sorted(steps.devices.items()))


def _size(run: Run, size: str) -> int | None:
    """Of a label, else of an option of the command; None: neither says it."""
    given = {name.lower().replace("_", "-"): value for name, value in [*_options(run.command), *run.labels.items()]}
    values = (given[name] for name in SIZES[size] if name in given)
    return next((int(value) for value in values if _SIZE.fullmatch(str(value))), None)


def _options(command: list[str]) -> Iterator[tuple[str, str]]:
    words = [str(word) for word in command]
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option = _OPTION.fullmatch(word)
        if option is not None:
            yield option[1], following if option[2] is None else option[2]
