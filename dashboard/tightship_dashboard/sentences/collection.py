"""*Is the collection healthy?* in words: the answer, one line per check, the state of a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, Link, Part
from tightship_platform.queries.collection import SKEW_NS
from tightship_platform.results.collection import CollectionHealth, HostDelivery
from tightship_platform.units import NS_PER_S, plural

State = Literal["ok", "note", "wrong"]
"""As `tightship doctor` has it."""
STALE_NS = 300 * NS_PER_S
"""Means per minute that end before this are stale: they are made every 30 s."""
WAITS_NS = 600 * NS_PER_S
"""An analysis that waits for longer waits for a worker."""
GAP_NS = 30 * NS_PER_S
QUEUED = 1000


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the page."""

    what: str
    state: State
    detail: str
    advice: str = ""


def answer(collection: CollectionHealth, checks: Sequence[Check]) -> Answer:
    """The first line."""
    if not collection.hosts:
        return ["0 hosts have reported: nothing is collected yet."]
    live = collection.hosts - collection.silent
    parts: list[Part] = [Link(f"{live} of {plural(collection.hosts, 'host')}", "#hosts")]
    parts += [" delivers" if live == 1 else " deliver"]
    off = [check for check in checks if check.state != "ok"]
    if not off:
        return [*parts, ", and nothing behind them waits or fails."]
    wrong = sum(check.state == "wrong" for check in off)
    needs = "needs" if len(off) == 1 else "need"
    at_once = f", {wrong} of them at once" if wrong else ""
    return [*parts, f"; {plural(len(off), 'thing')} below {needs} a look{at_once}."]


def state_of(delivery: HostDelivery) -> tuple[State, str]:
    """How well a host delivers, and in a word why it is no better."""
    if not delivery.alive:
        return "wrong", "silent"
    faults = {
        "no samples": delivery.newest_ns is None,
        "clock is off": delivery.ahead_ns is not None and abs(delivery.ahead_ns) > SKEW_NS,
        "gaps": delivery.gap_ns is not None and delivery.gap_ns > GAP_NS,
        "drops records": bool(delivery.dropped),
        "rows not stored": bool(delivery.not_stored),
        "source fails": bool(delivery.faults),
    }
    word = next((word for word, is_so in faults.items() if is_so), None)
    return ("note", word) if word else ("ok", "delivers")


def age(value_ns: int) -> str:
    """How old something is, to the minute, so that it does not change with every look."""
    minutes = value_ns // (60 * NS_PER_S)
    if minutes >= 60:
        return fmt.clock(value_ns)
    return f"{minutes} min" if minutes else "less than 1 min"


def checks(collection: CollectionHealth, queues: Mapping[str, int], now: int) -> list[Check]:
    """One line each: hosts, what they lost, means, queues, analyses, accounts, refusals."""
    return [
        _hosts(collection),
        _lost(collection),
        _rollups(collection, now),
        _queues(queues),
        _analyses(collection, now),
        _accounts(collection),
        _refusals(collection),
    ]


def _hosts(collection: CollectionHealth) -> Check:
    if not collection.silent:
        detail = f"{plural(collection.hosts, 'host')} heard of within 30 s"
        return Check(what="Agents", state="ok" if collection.hosts else "note", detail=detail)
    names = ", ".join(fmt.name(one.host, limit=40) for one in collection.deliveries[:3] if not one.alive)
    more = f" and {collection.silent - 3} more" if collection.silent > 3 else ""
    detail = f"{plural(collection.silent, 'host')} silent: {names}{more}"
    return Check(what="Agents", state="wrong", detail=detail, advice="`tightship doctor` on the host says why.")


def _lost(collection: CollectionHealth) -> Check:
    dropped = sum(one.dropped or 0 for one in collection.deliveries)
    not_stored = sum(one.not_stored or 0 for one in collection.deliveries)
    if not dropped and not not_stored:
        return Check(what="Losses", state="ok", detail="no record dropped, no row refused since the agents began")
    detail = f"{plural(dropped, 'record')} dropped by full spools, {plural(not_stored, 'row')} not stored"
    return Check(what="Losses", state="note", detail=detail, advice="The agents' logs say which and why.")


def _rollups(collection: CollectionHealth, now: int) -> Check:
    if collection.rolled_up_ns is None:
        detail = "nothing was rolled up yet"
        state: State = "wrong" if collection.hosts else "note"
        return Check(what="Means per minute", state=state, detail=detail, advice=_WORKERS)
    late = f"; {plural(collection.late_hours, 'hour')} of devices to make again" if collection.late_hours else ""
    behind_ns = max(0, now - collection.rolled_up_ns)
    detail = f"made up to {age(behind_ns)} ago{late}"
    if behind_ns > STALE_NS:
        return Check(what="Means per minute", state="wrong", detail=detail, advice=_WORKERS)
    return Check(what="Means per minute", state="ok", detail=detail)


_WORKERS = "`tightship worker` and `tightship beat` have to run; their logs say what stops them."


def _queues(queues: Mapping[str, int]) -> Check:
    if not queues:
        return Check(
            what="Tasks", state="wrong", detail="the broker does not answer", advice="See `TIGHTSHIP_BROKER_URL`."
        )
    detail = ", ".join(f"{fmt.count(length)} in {queue}" for queue, length in sorted(queues.items()))
    if max(queues.values()) > QUEUED:
        return Check(what="Tasks", state="wrong", detail=f"waiting: {detail}", advice=_WORKERS)
    return Check(what="Tasks", state="ok", detail=f"waiting: {detail}")


def _analyses(collection: CollectionHealth, now: int) -> Check:
    waits_ns = 0 if collection.waiting_since_ns is None else max(0, now - collection.waiting_since_ns)
    parts = [f"{plural(collection.waiting, 'capture')} waiting for an analysis"]
    if collection.waiting:
        parts.append(f"the first asked for {age(waits_ns)} ago")
    parts.append(f"{plural(collection.failed, 'capture')} failed within a day")
    if collection.failure:
        parts.append(f"the last: {fmt.name(collection.failure, limit=160)}")
    if waits_ns > WAITS_NS:
        return Check(what="Captures", state="wrong", detail="; ".join(parts), advice=_WORKERS)
    return Check(what="Captures", state="note" if collection.failed else "ok", detail="; ".join(parts))


def _accounts(collection: CollectionHealth) -> Check:
    if not collection.troubled:
        return Check(what="Accounts", state="ok", detail="none failed")
    detail = f"{plural(collection.troubled, 'run')} cannot be accounted for or judged; the last: "
    return Check(
        what="Accounts",
        state="wrong",
        detail=detail + fmt.name(collection.trouble, limit=160),
        advice="It is tried again by itself; the worker's log has the details.",
    )


def _refusals(collection: CollectionHealth) -> Check:
    if not collection.refused:
        return Check(what="Refusals", state="ok", detail="no token or login refused within a day")
    detail = f"{plural(collection.refused, 'entry', 'entries')} of refused tokens and logins within a day"
    advice = "`tightship audit --action token.refuse` lists them."
    return Check(what="Refusals", state="note", detail=detail, advice=advice)
