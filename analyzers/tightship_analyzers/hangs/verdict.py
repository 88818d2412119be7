"""Who waits for whom in a hung job, and for whom everybody waits in the end.

Each rank waits in the oldest operation that it has called and not completed. It waits for the members that are not in
it; else for those in it behind something older of their own; else for those whose device has not begun it; else
for itself, where others are further. Ranks that others wait for and that wait for nobody else are the culprits. What
kept them, host or device, is mostly not in a dump: what it does not hold is not guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tightship_analyzers.hangs.dumps import Entry, RankDump
from tightship_analyzers.hangs.progress import Job, Stage
from tightship_platform.results.hang import HangCulprit, HangKind, HangOperation, HangReport, HangWait
from tightship_platform.units import plural

ALIKE = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base", "barrier", "all_gather")
"""Collectives whose tensors have the same sizes and types on every rank."""


@dataclass(frozen=True)
class _Stand:
    """Where a rank stands."""

    entry: Entry
    waits_for: frozenset[int]
    kind: HangKind | None
    """What it is if it waits for nobody; None where a group's members are not known."""


def judge(dumps: Sequence[RankDump]) -> HangReport:
    """Which ranks a job waits for."""
    job = Job(dumps)
    stands = {rank: _stand(job, rank, entry) for rank in job.dumps if (entry := job.first(rank))}
    culprits = _culprits(job, stands)
    guilty = {culprit.rank for culprit in culprits}
    waits = _waits(job, stands, guilty)
    return HangReport(
        ranks=len(job.world),
        dumps=sorted(job.dumps),
        verdict=_verdict(culprits, waits),
        cause=_cause(job, culprits),
        culprits=culprits,
        waits=waits,
    )


def _stand(job: Job, rank: int, entry: Entry) -> _Stand:
    stages = {other: job.stage(rank, entry, other) for other in job.others(rank, entry)}
    odd = _odd(job, rank, entry)
    if rank in odd:
        return _Stand(entry, frozenset(), HangKind.MISMATCHED)
    if odd:
        return _Stand(entry, odd, None)
    missing = frozenset(o for o, stage in stages.items() if stage in (Stage.NO_DUMP, Stage.NOT_ENTERED))
    if missing:
        return _Stand(entry, missing, None)
    behind = frozenset(
        o for o, stage in stages.items() if stage is Stage.PENDING and not _is_first(job, rank, entry, o)
    )
    if behind:
        return _Stand(entry, behind, None)
    if any(stage is Stage.DONE for stage in stages.values()):
        return _Stand(entry, frozenset(), HangKind.QUEUED)
    begun = {other: _has_begun(job, rank, entry, other) for other in stages}
    if entry.started and not all(begun.values()):
        return _Stand(entry, frozenset(other for other in begun if not begun[other]), None)
    if not entry.started and any(begun.values()):
        return _Stand(entry, frozenset(), HangKind.QUEUED)
    return _Stand(entry, frozenset(), None if job.is_open(entry.group) else HangKind.INSIDE)


def _has_begun(job: Job, rank: int, entry: Entry, other: int) -> bool:
    own = job.counterpart(rank, entry, other) if entry.is_p2p else job.same(entry, other)
    return own is not None and own.started


def _is_first(job: Job, rank: int, entry: Entry, other: int) -> bool:
    """The operation is the other one's oldest, too."""
    first = job.first(other)
    return first is not None and first is (
        job.counterpart(rank, entry, other) if entry.is_p2p else job.same(entry, other)
    )


def _odd(job: Job, rank: int, entry: Entry) -> frozenset[int]:
    """Ranks that call something else than most of their peers; all of them where there is no majority."""
    if entry.is_p2p:
        return frozenset()
    calls = {rank: _call(entry)}
    for other in job.others(rank, entry):
        if other in job.dumps and (own := job.same(entry, other)):
            calls[other] = _call(own)
    ranked = Counter(calls.values()).most_common(2)
    if len(ranked) == 1:
        return frozenset()
    usual = None if ranked[0][1] == ranked[1][1] else ranked[0][0]
    return frozenset(other for other, call in calls.items() if call != usual)


def _call(entry: Entry) -> tuple[str, ...]:
    return (entry.name, *entry.shape) if entry.name in ALIKE else (entry.name,)


def _culprits(job: Job, stands: dict[int, _Stand]) -> list[HangCulprit]:
    found: dict[int, HangCulprit] = {}
    awaited = {other for stand in stands.values() for other in stand.waits_for}
    for rank in sorted(awaited - set(stands)):
        kind = HangKind.NOT_ENTERED if rank in job.dumps else HangKind.NO_DUMP
        missed = _missed(stands, rank)
        found[rank] = _culprit(job, rank, kind, missed)
    for rank, stand in stands.items():
        if stand.kind and (rank in awaited or stand.kind is not HangKind.INSIDE or not awaited):
            found[rank] = _culprit(job, rank, stand.kind, stand.entry)
    if not found:
        for rank in _circle(stands):
            found[rank] = _culprit(job, rank, HangKind.DEADLOCKED, stands[rank].entry)
    return [found[rank] for rank in sorted(found)]


def _missed(stands: dict[int, _Stand], rank: int) -> Entry:
    """The operation in which most ranks miss this one."""
    entries = [stand.entry for stand in stands.values() if rank in stand.waits_for]
    key = Counter((entry.group, entry.is_p2p, entry.seq) for entry in entries).most_common(1)[0][0]
    return next(entry for entry in entries if (entry.group, entry.is_p2p, entry.seq) == key)


def _circle(stands: dict[int, _Stand]) -> list[int]:
    """Ranks that wait for each other in a circle."""
    for start in sorted(stands):
        path, rank = [start], start
        while stands[rank].waits_for:
            rank = min(stands[rank].waits_for)
            if rank not in stands:
                break
            if rank in path:
                return sorted(path[path.index(rank) :])
            path.append(rank)
    return []


def _culprit(job: Job, rank: int, kind: HangKind, entry: Entry) -> HangCulprit:
    dump = job.dumps.get(rank)
    pending = len(dump.pending) if dump else 0
    places = [own.place for own in dump.entries if own.place] if dump else []
    place = entry.place if pending else (places[-1] if places else None)
    return HangCulprit(rank=rank, kind=kind, operation=_operation(job, entry), pending=pending, place=place)


def _operation(job: Job, entry: Entry) -> HangOperation:
    group = job.groups.get(entry.group)
    return HangOperation(
        name=entry.name,
        group=(group.desc or group.name) if group else entry.group,
        ranks=sorted(job.members(entry.group)),
        seq=entry.seq,
    )


def _waits(job: Job, stands: dict[int, _Stand], guilty: set[int]) -> list[HangWait]:
    in_one: dict[tuple[str, str, int, bool], list[int]] = {}
    for rank, stand in stands.items():
        if rank not in guilty:
            operation = _operation(job, stand.entry)
            direct = bool(stand.waits_for & guilty)
            in_one.setdefault((operation.group, operation.name, operation.seq, direct), []).append(rank)
    waits = []
    for (_, _, _, direct), ranks in in_one.items():
        operations = [_operation(job, stands[rank].entry) for rank in ranks]
        created = [at for rank in ranks if (at := stands[rank].entry.created_ns) is not None]
        waits.append(
            HangWait(
                operation=replace(operations[0], ranks=sorted({r for o in operations for r in o.ranks})),
                waiting=sorted(ranks),
                missing=sorted({other for rank in ranks for other in stands[rank].waits_for} - set(ranks)),
                since_ns=max(created, default=None),
                direct=direct,
            )
        )
    return sorted(waits, key=lambda wait: (not wait.direct, -len(wait.waiting), _is_transfer(wait), wait.waiting))


def _is_transfer(wait: HangWait) -> bool:
    return wait.operation.name.startswith(("send ", "recv "))


def _verdict(culprits: Sequence[HangCulprit], waits: Sequence[HangWait]) -> str:
    if not culprits and not waits:
        return "No rank waits for another: nothing is in flight, or what is has not been recorded."
    if not culprits:
        who = in_words(rank for wait in waits for rank in wait.waiting)
        where = _named(waits[0].operation) if len(waits) == 1 else "the operations below"
        return (
            f"{who} {'wait' if 'and' in who else 'waits'} in {where}; the dumps do not name all members of the group."
        )
    kinds = dict.fromkeys(culprit.kind for culprit in culprits)
    who = "; ".join(_sentence(kind, [culprit for culprit in culprits if culprit.kind is kind]) for kind in kinds)
    front = [wait for wait in waits if wait.direct]
    if not front:
        return f"{who}."
    waiting = sum(len(wait.waiting) for wait in front)
    behind = sum(len(wait.waiting) for wait in waits) - waiting
    most = front[0]
    of_them = f", {len(most.waiting)} of them in {_named(most.operation)}" if len(front) > 1 else ""
    inside = f" in {_named(most.operation)}" if len(front) == 1 else ""
    more = f", and {plural(behind, 'more rank')} behind these" if behind else ""
    return f"{who}. {plural(waiting, 'rank waits', 'ranks wait')} for {_them(culprits)}{inside}{of_them}{more}."


def _them(culprits: Sequence[HangCulprit]) -> str:
    return "it" if len(culprits) == 1 else "them"


def _sentence(kind: HangKind, culprits: Sequence[HangCulprit]) -> str:
    who, several = in_words(c.rank for c in culprits), len(culprits) > 1
    operations = list(dict.fromkeys(_named(c.operation) for c in culprits))
    where = operations[0] if len(operations) == 1 else "the operations below"
    if kind is HangKind.NOT_ENTERED:
        return f"{who} {'have' if several else 'has'} not called {where}"
    if kind is HangKind.QUEUED:
        if several:
            return f"{who} have called {where}, and their devices are behind their peers' there"
        return f"{who} has called {where}, and its device is behind its peers' there"
    if kind is HangKind.MISMATCHED:
        return f"{who} {'call' if several else 'calls'} {where} where peers call something else"
    if kind is HangKind.DEADLOCKED:
        return f"{who} wait for each other, each in another operation"
    if kind is HangKind.INSIDE:
        return f"{who} are in {where}, and none gets out"
    return f"There is no dump of {who[:1].lower()}{who[1:]}, which {'are' if several else 'is'} missed in {where}"


def _named(operation: HangOperation) -> str:
    return f"{operation.name} {operation.seq} of {operation.group}"


def in_words(ranks: Iterable[int]) -> str:
    """Such as 'Ranks 3, 4 and 7'."""
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"Rank {numbers[0]}"
    shown = numbers if len(numbers) <= 8 else [*numbers[:7], f"{len(numbers) - 7} more"]
    return f"Ranks {', '.join(shown[:-1])} and {shown[-1]}"


def _cause(job: Job, culprits: Sequence[HangCulprit]) -> str:
    """What the dumps show of it, and no more."""
    kinds = {culprit.kind for culprit in culprits}
    if not culprits:
        return "Unknown from the dumps."
    if kinds == {HangKind.NOT_ENTERED}:
        idle = "nothing of theirs is in flight" if len(culprits) > 1 else "nothing of its own is in flight"
        return (
            f"Unknown from the dumps: {idle}, so their programs are busy or blocked elsewhere. "
            "Python stacks say where, while it hangs: `tightship why RUN`."
        )
    if kinds == {HangKind.QUEUED}:
        return (
            "Unknown from the dumps: their devices have not run what the host has queued, from that operation on. "
            "Look for errors of these "
            "devices (Xid in the kernel's log, dmesg) and for a kernel before it that does not end."
        )
    if kinds == {HangKind.MISMATCHED}:
        return (
            "The ranks' programs call different collectives, or tensors of different sizes or types, in the same place."
        )
    if kinds == {HangKind.DEADLOCKED}:
        return "The ranks' programs call their operations in different orders."
    if kinds == {HangKind.INSIDE}:
        return "Unknown from the dumps: all members have called it. Look at the network between them and at NCCL's log."
    if kinds == {HangKind.NO_DUMP}:
        return "Unknown: a rank without a dump has ended, or was too stuck to write one; its own log says more."
    return "Unknown from the dumps: several things at once, listed by rank."
