"""Which rank of a live run the others wait for, from the Python stacks of its processes.

A stack says where a rank is, not why. A rank that is in no collective while others are in one keeps them waiting; what
keeps it is what its own stack shows. Where no stack shows a collective, steps may say who is behind; else places are
listed and nothing is claimed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tightship_analyzers.hangs.verdict import in_words
from tightship_platform.results.why import ProcessStack
from tightship_platform.units import plural
from tightship_platform.wire import Frame

_TORCH = re.compile(r"/(site|dist)-packages/(torch|functorch|torchgen)/")
_STANDARD = re.compile(r"/lib(64)?/python3\.\d+/(?!(site|dist)-packages/)|^<frozen |/tightship_collectors/inject")
_COLLECTIVES = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/_functional_collectives.py")
_LOADER = "/torch/utils/data/dataloader.py"


def own_place(frames: Sequence[Frame]) -> str | None:
    """The innermost frame outside of torch and of Python's own library."""
    for frame in frames:
        if frame.line and not _TORCH.search(frame.file) and not _STANDARD.search(frame.file):
            return str(frame)
    return None


def collective_of(frames: Sequence[Frame]) -> str | None:
    """The collective as the program called it; None: by these frames it is in none."""
    names = [frame.function for frame in frames if frame.file.endswith(_COLLECTIVES)]
    return names[-1].removeprefix("_").rpartition(".")[2] if names else None


def judge_stacks(processes: Sequence[ProcessStack]) -> tuple[str, str]:
    """The verdict, and what of the cause is known."""
    ranks = [one for one in processes if one.role == "rank"]
    seen, unseen = [one for one in ranks if one.stack], [one for one in ranks if not one.stack]
    if not seen:
        why = _reasons(processes) or "no process of it has loaded torch yet"
        return "Where its ranks are is not known.", f"Their stacks cannot be had: {why}."
    inside = [one for one in seen if one.collective]
    away = [one for one in seen if not one.collective]
    if inside and away:
        return _kept_waiting(inside, away), _cause(away, processes)
    if inside and unseen:
        return (
            f"{_waiting(inside)}; the place of {_lower(_ranks(unseen))} is not known.",
            f"Unknown: not all stacks can be had: {_reasons(unseen) or 'no reason was given'}.",
        )
    if inside:
        return _all_inside(inside), (
            "Unknown from stacks: every rank of this run has called it; a job on several hosts has a run on each. If "
            "the collectives differ, the program calls them in different orders; else look at the network and at the "
            "library's log. The flight recorder says which one each has completed: docs/hangs.md."
        )
    return _where(seen), _cause(_behind(seen), processes)


def _reasons(processes: Sequence[ProcessStack]) -> str:
    """Why stacks cannot be had."""
    return "; ".join(sorted({one.reason for one in processes if one.reason}))


def _waiting(inside: Sequence[ProcessStack]) -> str:
    named = Counter(one.collective for one in inside).most_common(1)[0][0]
    return f"{_ranks(inside)} {'wait' if len(inside) > 1 else 'waits'} in {named}"


def _kept_waiting(inside: Sequence[ProcessStack], away: Sequence[ProcessStack]) -> str:
    has = "have" if len(away) > 1 else "has"
    return f"{_waiting(inside)}, which {_lower(_ranks(away))} {has} not called: {_places(away)}."


def _all_inside(inside: Sequence[ProcessStack]) -> str:
    collectives = dict.fromkeys(str(one.collective) for one in inside)
    if len(collectives) == 1:
        subject = "It is" if len(inside) == 1 else f"All {len(inside)} ranks are"
        return f"{subject} in {next(iter(collectives))}, and {'does not get' if len(inside) == 1 else 'none gets'} out."
    parts = [f"{_lower(_ranks([o for o in inside if o.collective == name]))} in {name}" for name in collectives]
    return f"All ranks are in collectives, and not in the same one: {'; '.join(parts)}."


def _where(seen: Sequence[ProcessStack]) -> str:
    behind = _behind(seen)
    if len(behind) < len(seen):
        steps = max(one.steps for one in seen if one.steps is not None)
        fewer = ", ".join(str(one.steps) for one in behind)
        made = "has made" if len(behind) == 1 else "have made"
        return f"{_ranks(behind)} {made} {fewer} of {steps} steps: {_places(behind)}."
    return f"{_ranks(seen)} {'is' if len(seen) == 1 else 'are'} in no collective that a stack shows: {_places(seen)}."


def _behind(seen: Sequence[ProcessStack]) -> list[ProcessStack]:
    """Ranks with fewer steps than others; all where that says nothing."""
    steps = [one.steps for one in seen if one.steps is not None]
    if len(steps) < len(seen) or min(steps) == max(steps):
        return list(seen)
    return [one for one in seen if one.steps is not None and one.steps < max(steps)]


def _cause(away: Sequence[ProcessStack], processes: Sequence[ProcessStack]) -> str:
    if any(_LOADER in frame for one in away for frame in one.stack):
        workers = [one for one in processes if one.role == "worker"]
        if not workers:
            return "It waits for a batch that its loader makes in the same process; its stack says where."
        places = Counter(one.place or "Python's own library" for one in workers)
        where = "; ".join(f"{count} at {place}" for place, count in places.most_common(3))
        return f"It waits for a batch of its loader, whose {plural(len(workers), 'worker is', 'workers are')} {where}."
    if all(one.runs for one in away):
        return "It computes there, in Python or in what that calls: look at this code."
    if not any(one.runs for one in away):
        return "It waits there for something that its Python stack does not name; `--native` shows the C++ frames."
    return "Some compute there, and some wait."


def _ranks(processes: Sequence[ProcessStack]) -> str:
    return in_words(one.rank for one in processes if one.rank is not None)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _places(processes: Sequence[ProcessStack]) -> str:
    places = Counter(one.place or "Python's own library or torch" for one in processes)
    several = len(processes) > 1
    return "; ".join(
        f"{f'{count} ' if several and len(places) > 1 else ''}at {place}" for place, count in places.most_common(4)
    )
