"""One question, *will it fit, and how fast?*, answered in a process of its own: traces are large and searches long.

python -m tightship_analyzers.offload_planner.answer       # a question as a line of JSON on stdin

Writes lines of JSON: `{"stage": …}` while it works, then `{"answer": {…}}` or `{"refused": "…"}`. It ends when its
stdin does, so that none outlives the server that asked.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import IO, Any

from tightship_analyzers.offload_planner.assumed import ASSUMED_SPREAD_FRAC, NOTE, assumed_hardware, on_device
from tightship_analyzers.offload_planner.constraints import Constraints
from tightship_analyzers.offload_planner.fit import fit
from tightship_analyzers.offload_planner.plans import rules_for
from tightship_analyzers.offload_planner.profile import Profile, parse_profile
from tightship_analyzers.offload_planner.request import CPU, MOST_PROFILE_BYTES, Question
from tightship_analyzers.offload_planner.sources import Source
from tightship_analyzers.offload_planner.workflow_profile import profile_of_workflow
from tightship_offload.errors import OffloadError, PlanError
from tightship_offload.plan.model import HardwareSpec
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.errors import TightshipError
from tightship_platform.units import format_bytes

Tell = Callable[[str], None]


def answer(question: Question, tell: Tell = lambda _: None) -> dict[str, Any]:
    """What `fit` says, with `profile` (its text), `source` (the trace that was used) and `assumed`.

    :raises OffloadError: nothing can be planned from it; one line.
    :raises TightshipError: a file cannot be had.
    """
    source = None
    if question.profile is None:
        tell("reading the trace")
        original, source = profile_of_workflow(question.sources, _from_store(question))
    else:
        if len(question.profile) > MOST_PROFILE_BYTES:
            raise PlanError(
                f"The profile has {len(question.profile):,} characters; expected at most {MOST_PROFILE_BYTES:,}, as "
                "`tightship offload measure -o` writes it"
            )
        original = parse_profile(question.profile)
    profile, machine, is_assumed = _on_machine(original, question)
    constraints = Constraints(device_bytes=question.budget_bytes, rules=rules_for(profile))
    return fit(profile, machine, constraints, tell=tell) | {
        "profile": json.dumps(original.as_mapping()),
        "source": None if source is None else asdict(source),
        "assumed": is_assumed,
    }


def _from_store(question: Question) -> Callable[[Source, IO[bytes]], None]:
    keys = dict(zip((one.trace for one in question.sources), question.keys, strict=True))

    def fetch(source: Source, file: IO[bytes]) -> None:
        with ArtifactStore(question.artifacts_url).open(keys[source.trace]) as stored:
            shutil.copyfileobj(stored, file)

    return fetch


def _on_machine(profile: Profile, question: Question) -> tuple[Profile, HardwareSpec, bool]:
    """The profile with its times on the device to plan for, that machine, and whether its rates are assumed."""
    measured = profile.hardware
    recorded = question.recorded_on or (measured.device if measured is not None else None)
    target = question.device or recorded
    if target is None:
        raise PlanError("Neither the profile nor anybody else says for which device to plan; choose a GPU")
    known_bytes, known_cores = (None, None) if measured is None else (measured.host_bytes, measured.cores)
    host_bytes, cores = question.host_bytes or known_bytes, question.cores or known_cores
    if measured is not None and target == measured.device and host_bytes and cores:
        device_bytes = host_bytes if target == CPU else measured.device_bytes
        return profile, replace(measured, device_bytes=device_bytes, host_bytes=host_bytes, cores=cores), False
    if not host_bytes or not cores:
        raise PlanError("Nobody has told the memory and the cores of the host; give both")
    machine = assumed_hardware(
        target,
        device_bytes=question.recorded_bytes if target == question.recorded_on else None,
        host_bytes=host_bytes,
        cores=cores,
    )
    moved = on_device(profile, recorded or target, target)
    told = [f"Nothing says where the times were measured; they are taken to be on {target}."] if not recorded else []
    spread = max(ASSUMED_SPREAD_FRAC, moved.spread_frac)
    return replace(moved, spread_frac=spread, notes=(*moved.notes, *told, NOTE)[-50:]), machine, True


def main() -> None:
    """See the head of this file."""
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    asked["sources"] = tuple(Source(**one) for one in asked["sources"])
    asked["keys"] = tuple(asked["keys"])
    said: dict[str, Any]
    try:
        said = {"answer": answer(Question(**asked), lambda stage: _write({"stage": stage}))}
    except (OffloadError, TightshipError) as error:
        said = {"refused": str(error)}
    except MemoryError:
        said = {"refused": f"The trace is too large for the memory of the server ({format_bytes(_peak_bytes())} used)"}
    _write(said)


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


def _peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
