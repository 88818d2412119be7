"""How far each rank of a job is in an operation: it has not called it, is in it, or has completed it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from tightship_analyzers.hangs.dumps import Entry, Group, RankDump


class Stage(Enum):
    """Of a rank in an operation."""

    NO_DUMP = 0
    NOT_ENTERED = 1
    PENDING = 2
    DONE = 3


class Job:
    """The dumps of one job's ranks."""

    def __init__(self, dumps: Sequence[RankDump]) -> None:
        self.dumps = {dump.rank: dump for dump in dumps}
        self._open: set[str] = set()
        self.groups = self._merged()
        named = {rank for group in self.groups.values() for rank in group.ranks}
        self.world = sorted(named | set(self.dumps))

    def _merged(self) -> dict[str, Group]:
        """Each group as the first rank describes it that knows its members; else who has an entry in it is one.

        Gloo's recorder names no members: whoever never was in an operation of a group may be a member or not.
        """
        merged: dict[str, Group] = {}
        for dump in self.dumps.values():
            for name, group in dump.groups.items():
                if not merged.get(name, group).ranks or name not in merged:
                    merged[name] = group
        for name, group in merged.items():
            if not group.ranks:
                whole = group.desc == "default_pg"
                ranks = [r for r, dump in self.dumps.items() if whole or any(e.group == name for e in dump.entries)]
                merged[name] = Group(name=name, desc=group.desc, ranks=tuple(ranks))
                if not whole:
                    self._open.add(name)
        return merged

    def is_open(self, name: str) -> bool:
        """The group may have more members than the dumps name."""
        return name in self._open

    def members(self, name: str) -> tuple[int, ...]:
        """Global ranks of a group."""
        return self.groups[name].ranks if name in self.groups else ()

    def others(self, rank: int, entry: Entry) -> list[int]:
        """Global ranks that have to be in an operation of this rank's, besides itself."""
        members = self.members(entry.group)
        if entry.is_p2p:
            return [members[entry.peer]] if entry.peer is not None and entry.peer < len(members) else []
        return [member for member in members if member != rank]

    def first(self, rank: int) -> Entry | None:
        """The oldest operation that a rank has called and not completed."""
        dump = self.dumps.get(rank)
        return dump.pending[0] if dump and dump.pending else None

    def stage(self, rank: int, entry: Entry, other: int) -> Stage:
        """Of another rank in an operation of this rank's."""
        dump = self.dumps.get(other)
        if dump is None:
            return Stage.NO_DUMP
        if entry.is_p2p:
            return Stage.PENDING if self.counterpart(rank, entry, other) else Stage.NOT_ENTERED
        if (own := self.same(entry, other)) is not None:
            return Stage.DONE if own.done else Stage.PENDING
        status = dump.statuses.get(entry.group)
        if status is None:
            seqs = [e.seq for e in dump.entries if e.group == entry.group and not e.is_p2p]
            # Nothing of the group is left in its record: a rank with nothing in flight is in no operation at all.
            return Stage.DONE if seqs and min(seqs) > entry.seq else Stage.NOT_ENTERED
        if status.enqueued < entry.seq:
            return Stage.NOT_ENTERED
        return Stage.DONE if status.completed >= entry.seq else Stage.PENDING

    def same(self, entry: Entry, other: int) -> Entry | None:
        """Another rank's record of the same collective."""
        return next(
            (
                own
                for own in self.dumps[other].entries
                if own.group == entry.group and own.seq == entry.seq and not own.is_p2p
            ),
            None,
        )

    def counterpart(self, rank: int, entry: Entry, other: int) -> Entry | None:
        """The other side of a transfer, where it is pending: the n-th open send belongs to the n-th open receive."""
        members = self.members(entry.group)
        opposite = "recv" if entry.direction == "send" else "send"
        mine = [
            e
            for e in self.dumps[rank].pending
            if e.group == entry.group and e.direction == entry.direction and e.peer == entry.peer
        ]
        theirs = [
            e
            for e in self.dumps[other].pending
            if e.group == entry.group
            and e.direction == opposite
            and e.peer is not None
            and e.peer < len(members)
            and members[e.peer] == rank
        ]
        index = mine.index(entry)
        return theirs[index] if index < len(theirs) else None
