"""Heartbeats: who is there, which runs live, which devices they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.models import Host, Run
from tightship_platform.database.reporters import ANYBODY, Reporter, put_host
from tightship_platform.errors import Invalid
from tightship_platform.ingest.allocations import Shown, hold_now
from tightship_platform.ingest.inventory import checked_devices, put_devices
from tightship_platform.ingest.known import KnownHost, KnownRun, Tell
from tightship_platform.ingest.plain import described, stated_of_host, stated_of_run
from tightship_platform.ingest.refused_rows import RefusedRows
from tightship_platform.ingest.run_owner import is_of_another
from tightship_platform.ingest.runs import revive, runs_by_key, seen
from tightship_platform.units import now_ns
from tightship_platform.wire import MAX_HEARTBEAT_RUNS, Heartbeat, LiveRun, RankRecord, SourceState

MAX_RANKS = 10_000
MAX_ENTRIES = 64
TEXT_MAX = 500
SOURCE_STATES = ("ok", "absent", "error")
Fact = str | int | float
"""A system fact of a host."""


def apply_heartbeat(
    session: Session,
    beat: Heartbeat,
    *,
    reporter: Reporter = ANYBODY,
    refused: RefusedRows | None = None,
    now: int | None = None,
    tell: Tell | None = None,
) -> list[str]:
    """Take note of a host, its devices and its live runs; returns the runs that were never announced.

    What a heartbeat says holds at the moment it arrives: a host whose clock is off keeps its runs alive.

    :param refused: counts the runs that belong to another host, which are left as they are, and deleted ones.
    :param tell: gets what is known of the host from then on.
    :raises Invalid: a value is not acceptable; nothing was changed.
    :raises Forbidden: the reporter may not speak for this host.
    """
    refused = RefusedRows() if refused is None else refused
    now = now_ns() if now is None else now
    devices = checked_devices(beat.devices)
    info, sources = check_heartbeat(beat, now)
    host_id = put_host(session, beat.host, now, reporter)
    host = session.get_one(Host, host_id, populate_existing=True)
    host.agent_version = validation.line(beat.agent_version, 40)
    host.info, host.sources = info, sources
    device_ids = put_devices(session, host_id, devices, {uuid for live in beat.runs for uuid in live.devices})
    first_seen = {live.run: live.since_ns or beat.time_ns for live in beat.runs}
    runs, unknown = runs_by_key(session, first_seen, beat.host, team=reporter.team)
    ours = [live for live in beat.runs if not is_of_another(runs, live.run, beat.host, refused)]
    # The agent has not noticed the end of the others yet.
    alive = [(runs[live.run], live) for live in ours if runs[live.run].end_ns is None]
    for run, live in alive:
        seen(run, now)
        revive(run, now)
        note_ranks(run, live, beat.host)
    hold_now(session, shown(alive, device_ids, beat.time_ns), now)
    session.flush()
    if tell is not None:
        known_runs = {
            run.key: KnownRun(run_id=run.id, stated=stated_of_run(live))
            for run, live in alive
            if run.key not in unknown
        }
        tell(
            KnownHost(
                name=beat.host,
                host_id=host_id,
                device_ids=device_ids,
                devices=described(beat.devices),
                stated=stated_of_host(beat) if is_stored_as_it_is(beat, info, sources) else None,
                info=info,
                runs=known_runs,
                seen_ns=now,
            )
        )
    return unknown


def is_stored_as_it_is(beat: Heartbeat, info: dict[str, Fact], sources: list[dict[str, str]]) -> bool:
    """Whether nothing that it says of its host has to be made fit for one line, which is made so each time.

    :param info: this and the next: as `check_heartbeat` returned them.
    """
    said = [{"name": one.name, "state": one.state, "detail": one.detail} for one in beat.sources]
    return info == beat.info and sources == said and validation.line(beat.agent_version, 40) == beat.agent_version


def shown(alive: Sequence[tuple[Run, LiveRun]], device_ids: Mapping[str, int], time_ns: int) -> list[Shown]:
    """The devices that live runs hold."""
    return [
        Shown(run=run, device_id=device_ids[uuid], since_ns=live.since_ns, time_ns=time_ns)
        for run, live in alive
        for uuid in live.devices
    ]


def note_ranks(run: Run, live: LiveRun, host: str) -> None:
    """Take the ranks of the run on this host, and the steps that they made."""
    others = [entry for entry in run.ranks if entry["host"] != host]
    here = [{"rank": rank.rank, "pid": rank.pid, "host": host, "guard": rank.guard} for rank in live.ranks]
    run.ranks = sorted(others + here, key=lambda entry: (entry["rank"], entry["host"], entry["pid"]))
    counts = [rank.steps for rank in live.ranks if rank.steps is not None]
    if counts:
        run.steps = max(*counts, run.steps or 0)


def check_heartbeat(beat: Heartbeat, now: int) -> tuple[dict[str, Fact], list[dict[str, str]]]:
    """The host's facts and sources as they are stored.

    :raises Invalid: a value is not acceptable.
    """
    validation.name("Host", beat.host)
    validation.time_ns("Heartbeat time_ns", beat.time_ns, now)
    if len(beat.runs) > MAX_HEARTBEAT_RUNS:
        raise Invalid("Number of runs in a heartbeat", len(beat.runs), f"at most {MAX_HEARTBEAT_RUNS}; send several")
    for live in beat.runs:
        validation.key("Run", live.run)
        if live.since_ns != 0:
            validation.time_ns("since_ns", live.since_ns, now)
        if len(live.ranks) > MAX_RANKS:
            raise Invalid("Ranks of one run", len(live.ranks), f"at most {MAX_RANKS}")
        for rank in live.ranks:
            _check_rank(rank)
        for uuid in live.devices:
            validation.name("Device uuid", uuid)
    return _info(beat.info), _sources(beat.sources)


def _check_rank(rank: RankRecord) -> None:
    validation.count("Rank", rank.rank, least=-1, most=validation.RANK_MAX)
    validation.count("Pid", rank.pid, least=1, most=validation.INT32_MAX)
    if rank.steps is not None:
        validation.count("Steps", rank.steps)


def _info(info: dict[str, Fact]) -> dict[str, Fact]:
    if len(info) > MAX_ENTRIES:
        raise Invalid("System facts", len(info), f"at most {MAX_ENTRIES}")
    kept: dict[str, Fact] = {}
    for key, value in info.items():
        validation.name("System fact", key)
        if isinstance(value, str):
            kept[key] = validation.line(value, TEXT_MAX)
        elif isinstance(value, int):
            kept[key] = validation.count(f"System fact {key}", int(value), least=-validation.COUNT_MAX)
        else:
            kept[key] = validation.number(f"System fact {key}", value, least=-validation.COUNT_MAX)
    return kept


def _sources(sources: list[SourceState]) -> list[dict[str, str]]:
    if len(sources) > MAX_ENTRIES:
        raise Invalid("Sources", len(sources), f"at most {MAX_ENTRIES}")
    for source in sources:
        validation.name("Source", source.name)
        if source.state not in SOURCE_STATES:
            raise Invalid(f"State of source {source.name}", source.state, f"one of {', '.join(SOURCE_STATES)}")
    return [{"name": s.name, "state": s.state, "detail": validation.line(s.detail, TEXT_MAX)} for s in sources]
