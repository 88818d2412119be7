"""Dumps of PyTorch's flight recorder, which keeps the newest collectives of each rank.

A job writes one file per rank when a collective times out (`TORCH_FR_BUFFER_SIZE=2000`, `TORCH_NCCL_DUMP_ON_TIMEOUT=1`;
the file's name ends with the rank), as a pickle or as JSON. Fields: torch/csrc/distributed/c10d/FlightRecorder.hpp.

[Note: whose pickle]
A dump may come from anybody. Only the operations of plain data are let through, before anything is unpickled: no name
is looked up, nothing is called, and no operation makes more than its own bytes say.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tightship_platform.errors import Invalid, NotFound, TightshipError
from tightship_platform.validation import RANK_MAX

MAX_BYTES = 64 * 2**20
"""Of one dump: 2,000 entries with stacks are a few MB."""
MAX_SIZES = 32
"""Tensors of an entry whose sizes are compared."""
_PLAIN = frozenset(
    (
        "PROTO",
        "FRAME",
        "STOP",
        "MARK",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "EMPTY_DICT",
        "EMPTY_LIST",
        "EMPTY_TUPLE",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
        "APPEND",
        "APPENDS",
        "SETITEM",
        "SETITEMS",
        "DICT",
        "LIST",
        "BINPUT",
        "LONG_BINPUT",
        "BINGET",
        "LONG_BINGET",
        "MEMOIZE",
    )
)
_PEERS = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One operation that a rank has called."""

    order: int
    """Number among all of the rank's."""
    group: str
    """Name of the process group."""
    name: str
    """Without the library: `all_reduce`."""
    is_p2p: bool
    seq: int
    """Number among the group's collectives, or among its transfers."""
    started: bool
    """Its device has begun it, where the recorder looks for that."""
    done: bool
    created_ns: int | None
    shape: tuple[str, ...]
    """Sizes and types of its tensors, to compare with those of its peers."""
    direction: str = ""
    """Of a transfer: `send` or `recv`."""
    peer: int | None = None
    """Of a transfer: the other side's number within the group."""
    place: str | None = None
    """The innermost frame of the job's own, where stacks were recorded."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process group, as one rank describes it."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    """Global ranks in the order of the group; empty where the dump does not say."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How far a rank is in a group's collectives."""

    enqueued: int
    completed: int


@dataclass(frozen=True, kw_only=True)
class RankDump:
    """One rank's dump."""

    rank: int
    groups: Mapping[str, Group]
    statuses: Mapping[str, Status]
    """By the group's name; a group is missing where the dump does not tell which one the figures are of."""
    entries: Sequence[Entry]
    pending: Sequence[Entry] = field(init=False)
    """What is called and not complete, in order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pending", [entry for entry in self.entries if not entry.done])


def read_dumps(paths: Iterable[str | Path]) -> list[RankDump]:
    """The dumps of a job, in order of rank. A folder stands for those of its files whose names end with a number.

    :raises NotFound: there is no such file, or none in a folder.
    :raises Invalid: a file is no dump, or two are of one rank.
    """
    files = [file for path in paths for file in _files(Path(path))]
    found: dict[int, tuple[Path, RankDump]] = {}
    for file in files:
        rank = _rank_of(file)
        if rank is None:
            raise Invalid("Name of a dump", file.name, "a name that ends with the rank, such as nccl_trace_rank_3")
        if rank in found:
            raise Invalid(f"Dump of rank {rank}", str(file), f"one file per rank; {found[rank][0]} is of it, too")
        found[rank] = file, _read(file, rank)
    return [dump for _, (_, dump) in sorted(found.items())]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise NotFound("dump", str(path), "name the folder that TORCH_FR_DUMP_TEMP_FILE points into, or its files")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and _rank_of(file) is not None)
    if not files:
        raise NotFound("dump", str(path), "the names of dumps end with the rank, such as nccl_trace_rank_3")
    return files


def _rank_of(path: Path) -> int | None:
    match = re.search(r"(\d{1,7})$", path.name.removesuffix(".json").removesuffix(".pkl"), re.ASCII)
    return int(match[1]) if match and int(match[1]) <= RANK_MAX else None


def _read(path: Path, rank: int) -> RankDump:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TightshipError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise Invalid(f"Size of {path.name}", len(data), f"at most {MAX_BYTES} bytes")
    try:
        loaded = json.loads(data) if data[:1] in (b"{", b"[") else _unpickle(data)
        return _dump(rank, loaded)
    except (ValueError, TypeError, KeyError, LookupError, AttributeError, RecursionError, EOFError) as error:
        raise Invalid(f"Dump {path.name}", f"{type(error).__name__}: {error}", "a flight recorder's dump") from None
    except pickle.UnpicklingError as error:
        raise Invalid(f"Dump {path.name}", str(error), "a flight recorder's dump of plain data") from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _unpickle(data: bytes) -> Any:
    """See [Note: whose pickle]."""
    puts = 0
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in _PLAIN:
            raise pickle.UnpicklingError(f"it has the operation {opcode.name}")
        if opcode.name in ("BINPUT", "LONG_BINPUT"):
            puts += 1
            if not isinstance(argument, int) or argument > puts:  # the unpickler makes room for all numbers below
                raise pickle.UnpicklingError(f"it remembers value {argument} as its {puts}.")
    return _PlainUnpickler(io.BytesIO(data)).load()


def _dump(rank: int, loaded: Any) -> RankDump:
    groups: dict[str, Group] = {}
    for name, config in loaded.get("pg_config", {}).items():
        if str(name):
            members = tuple(int(number) for number in re.findall(r"\d{1,7}", str(config.get("ranks", ""))))
            groups[str(name)] = Group(name=str(name), desc=str(config.get("desc", "")), ranks=members)
    entries = [_entry(entry) for entry in loaded.get("entries", [])]
    entries.sort(key=lambda entry: entry.order)
    numbers = {}
    for raw in loaded.get("entries", []):
        name, desc = (str(part) for part in raw["process_group"])
        numbers[str(raw["pg_id"])] = name
        if name not in groups:
            groups[name] = Group(name=name, desc=desc, ranks=())
    return RankDump(
        rank=rank,
        groups=groups,
        statuses=_statuses(loaded.get("pg_status", {}), numbers, groups),
        entries=_joined(entries),
    )


def _statuses(raw: Mapping[str, Any], numbers: dict[str, str], groups: Mapping[str, Group]) -> dict[str, Status]:
    """By the group's name; the dump gives them by a number of the rank's own.

    Entries say which number is which group. Both count the groups in the order in which they were made, so that equally
    many numbers and names belong together in that order.
    """
    if len(raw) == len(groups) and all(name.isdigit() for name in (*raw, *groups)):
        in_order = dict(zip(sorted(raw, key=int), sorted(groups, key=int), strict=True))
        if all(in_order.get(number) == name for number, name in numbers.items()):
            numbers = in_order
    return {
        numbers[number]: Status(
            enqueued=int(status["last_enqueued_collective"]), completed=int(status["last_completed_collective"])
        )
        for number, status in raw.items()
        if number in numbers
    }


def _entry(raw: Any) -> Entry:
    name = str(raw["profiling_name"]).split(":", 1)[-1]
    is_p2p = bool(raw["is_p2p"])
    peers = _PEERS.match(name) if is_p2p else None
    created = raw.get("time_created_ns")
    done = bool(raw.get("retired")) or raw.get("state") == "completed"
    return Entry(
        order=int(raw["record_id"]),
        group=str(raw["process_group"][0]),
        name=name,
        is_p2p=is_p2p,
        seq=int(raw["p2p_seq_id" if is_p2p else "collective_seq_id"]),
        started=done or raw.get("state") == "started",
        done=done,
        created_ns=int(created) if created else None,
        shape=tuple(
            str(value)
            for key in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
            for value in list(raw.get(key) or ())[:MAX_SIZES]
        ),
        direction=peers[1] if peers else "",
        peer=int(peers[3]) if peers else None,
        place=_place(raw.get("frames") or ()),
    )


def _place(frames: Sequence[Any]) -> str | None:
    """The innermost frame outside of torch: the dump has the innermost one first."""
    for frame in frames:
        file = str(frame.get("filename", ""))
        if file and "/torch/" not in file:
            return f"{file}:{frame.get('line', '?')} {frame.get('name', '')}".rstrip()
    return None


def _joined(entries: Sequence[Entry]) -> list[Entry]:
    """Without the ends of batches: operations of a batch are complete when its end is, a separate entry."""
    kept: list[Entry] = []
    for entry in entries:
        if not entry.name.startswith("coalesced"):
            kept.append(entry)
            continue
        for index in range(len(kept) - 1, -1, -1):
            member = kept[index]
            if (member.group, member.is_p2p, member.seq) != (entry.group, entry.is_p2p, entry.seq):
                break
            kept[index] = replace(member, done=entry.done)
    return kept
