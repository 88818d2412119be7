"""The lists as tables: what of each record is shown, and what of it may be left out where a terminal is narrow."""

from __future__ import annotations

from collections.abc import Sequence

from tightship_platform.commands.terminal import Column, Listed, clock
from tightship_platform.results.action import Action, measured_words, predicted_words
from tightship_platform.results.capture import Capture
from tightship_platform.results.finding import Finding, FindingSaving
from tightship_platform.results.fleet import AccountGroup
from tightship_platform.results.host import Host, count_devices
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.results.run import Run
from tightship_platform.results.run_account import (
    BUCKET_LABEL,
    awaits_account,
    has_no_trace,
    largest_loss,
    listed_account,
)
from tightship_platform.results.sample import Sample
from tightship_platform.results.workflow import Workflow
from tightship_platform.units import NS_PER_S, format_elapsed, format_frac, format_ns
from tightship_platform.vocabulary import Bucket, HostState, RunState


def runs(items: Sequence[Run]) -> Listed:
    """Of each run how it ended and where its device time went."""
    named = [Column("NAME")] if any(item.name for item in items) else []
    sourced = [Column("SOURCE")] if any(item.is_seen for item in items) else []
    columns = [
        Column("RUN", whole=True),
        *named,
        Column("WORKFLOW"),
        Column("TEAM", spare=2),
        Column("STATE", state=True),
        *sourced,
        Column("STARTED", spare=2),
        Column("TOOK", right=True, spare=2),
        Column("STEPS", right=True, spare=2),
        Column("DEVICE TIME", right=True, spare=1),
        Column("PRODUCTIVE", right=True),
        Column("LARGEST LOSS"),
        Column("REASON", prose=True),
    ]
    rows = [
        (
            item.run,
            *([item.name or "–"] if named else []),
            item.workflow,
            item.team or "–",
            f"{item.state} ({item.exit_code})" if item.exit_code else item.state,
            *([item.source] if sourced else []),
            clock(item.start_ns),
            format_elapsed(None if item.end_ns is None else item.end_ns - item.start_ns),
            "–" if item.steps is None or awaits_account(item) else item.steps,
            _device_time(item),
            _productive(item),
            _largest_loss(item),
            item.reason or "",
        )
        for item in items
    ]
    return Listed(columns, rows)


def captures(items: Sequence[Capture]) -> Listed:
    """Of each capture how far it came, and why no further."""
    columns = [
        Column("CAPTURE", whole=True),
        Column("RUN", whole=True),
        Column("WORKFLOW"),
        Column("STATE", state=True),
        Column("REQUESTED", spare=1),
        Column("BY", spare=1),
        Column("TRACES", right=True, spare=1),
        Column("LATENCY", right=True, spare=1),
        Column("REASON", prose=True),
    ]
    rows = [
        (
            item.capture,
            item.run,
            item.workflow,
            item.state,
            clock(item.requested_ns),
            item.requested_by,
            f"{len(item.ranks)}/{len(item.expected)}" if item.expected else len(item.ranks),
            format_ns(None if item.latency_s is None else round(item.latency_s * NS_PER_S)),
            item.reason or item.passes_reason or "",
        )
        for item in items
    ]
    return Listed(columns, rows)


def findings(items: Sequence[Finding]) -> Listed:
    """Of each finding what acting on it saves, between what and what, and how that is known."""
    columns = [
        Column("ID", right=True, whole=True),
        Column("RULE", whole=True),
        Column("WORKFLOW"),
        Column("RUN", whole=True, spare=2),
        Column("RANK", right=True, spare=2),
        Column("WHERE", spare=1),
        Column("SAVES", right=True),
        Column("LOW–HIGH", right=True, spare=1),
        Column("METHOD", whole=True),
        Column("SHARE", right=True, spare=2),
        Column("FIX", prose=True),
    ]
    rows = [
        (
            item.finding,
            item.rule,
            item.workflow,
            item.run,
            "–" if item.rank is None else item.rank,
            item.where or "–",
            _saving(item.saving),
            _interval(item.saving.low, item.saving.high),
            item.saving.method or "–",
            format_frac(item.saving.share_frac),
            item.fix,
        )
        for item in items
    ]
    return Listed(columns, rows)


def opportunities(items: Sequence[Opportunity]) -> Listed:
    """Of each opportunity what it frees, and what to do for it."""
    columns = [
        Column("#", right=True),
        Column("WORKFLOW"),
        Column("WHAT"),
        Column("FREES", right=True),
        Column("LOW–HIGH", right=True, spare=1),
        Column("OF", right=True, spare=2),
        Column("METHOD", whole=True),
        Column("STATE", state=True),
        Column("FIX", prose=True),
    ]
    rows = [
        (
            item.position,
            item.workflow,
            " + ".join(item.rules),
            format_ns(item.recoverable_device_ns),
            _interval(item.low_ns, item.high_ns),
            format_ns(item.device_ns),
            item.method or "–",
            item.state,
            item.fix,
        )
        for item in items
    ]
    return Listed(columns, rows)


def actions(items: Sequence[Action]) -> Listed:
    """Of each action what was predicted, what was measured, and why nothing is known yet."""
    columns = [
        Column("ACTION", whole=True),
        Column("OPPORTUNITY", right=True, whole=True),
        Column("WORKFLOW"),
        Column("WHAT"),
        Column("WHEN", spare=2),
        Column("BY", spare=2),
        Column("STATE", state=True),
        Column("PREDICTED", right=True, spare=1),
        Column("MEASURED", right=True, spare=1),
        Column("WHY", prose=True),
    ]
    rows = [
        (
            item.action,
            "–" if item.opportunity is None else item.opportunity,
            item.workflow,
            item.kind,
            clock(item.time_ns),
            item.by,
            item.state or "–",
            predicted_words(item.predicted),
            "–" if item.verification is None else measured_words(item.verification),
            item.waits_for or item.reason or (item.verification.reason if item.verification else ""),
        )
        for item in items
    ]
    return Listed(columns, rows)


def hosts(items: Sequence[Host]) -> Listed:
    """Of each host whether its agent is heard of, and what it cannot see there."""
    columns = [
        Column("HOST", whole=True),
        Column("STATE", state=True),
        Column("DEVICES"),
        Column("AGENT", spare=2),
        Column("LAST HEARD OF", spare=1),
        Column("TROUBLE", prose=True),
    ]
    rows = [
        (
            item.host,
            HostState.ALIVE if item.alive else HostState.SILENT,
            count_devices(item.devices) or "–",
            item.agent_version or "–",
            clock(item.last_seen_ns),
            "; ".join(f"{source.name}: {source.detail}" for source in item.sources if source.state == "error"),
        )
        for item in items
    ]
    return Listed(columns, rows)


def workflows(items: Sequence[Workflow]) -> Listed:
    """Of each workflow whose it is, and how many runs it has."""
    columns = [
        Column("WORKFLOW", whole=True),
        Column("TEAM", spare=1),
        Column("OWNER", spare=1),
        Column("RUNS", right=True),
        Column("LIVE", right=True),
        Column("LAST START", spare=1),
        Column("CAPTURED", spare=1),
    ]
    rows = [
        (
            item.workflow,
            item.team or "–",
            item.owner or "–",
            item.runs,
            item.live,
            clock(item.last_start_ns),
            "on request" if item.schedule is None else f"every {format_ns(item.schedule.every_ns)}",
        )
        for item in items
    ]
    return Listed(columns, rows)


def samples(items: Sequence[Sample]) -> Listed:
    """Of each sample what was measured, when, and of whom."""
    columns = [
        Column("TIME"),
        Column("HOST"),
        Column("DEVICE"),
        Column("RUN", whole=True),
        Column("METRIC", whole=True),
        Column("VALUE", right=True, whole=True),
    ]
    rows = [
        (clock(item.time_ns), item.host, item.device or "–", item.run or "–", item.metric, f"{item.value:,}")
        for item in items
    ]
    return Listed(columns, rows)


def accounts(items: Sequence[AccountGroup]) -> Listed:
    """Of each group how much device time it held, how much of it was busy, and what took most of the rest."""
    waits = any(item.waiting_ns is not None for item in items)
    columns = [
        Column("WHAT", whole=True),
        Column("RUNS", right=True),
        Column("DEVICES", right=True, spare=1),
        Column("DEVICE TIME", right=True),
        Column("BUSY", right=True),
        Column("IDLE", right=True),
        Column("UNMEASURED", right=True, spare=2),
        *([Column("WAITED", right=True, spare=1)] if waits else []),
        Column("PRODUCTIVE", right=True),
        Column("LARGEST LOSS"),
    ]
    rows = [
        (
            item.key,
            item.runs,
            "–" if item.devices is None else item.devices,
            format_ns(item.device_ns),
            format_ns(item.busy_ns),
            format_ns(item.idle_ns),
            format_ns(item.unmeasured_ns),
            *([format_ns(item.waiting_ns)] if waits else []),
            *_shares(item.buckets, item.device_ns),
        )
        for item in items
    ]
    return Listed(columns, rows)


def _shares(buckets: dict[str, int], device_ns: int) -> tuple[str, str]:
    if not device_ns:
        return "–", "–"
    bucket, loss_ns = largest_loss(buckets)
    loss = f"{format_frac(loss_ns / device_ns)} {BUCKET_LABEL[bucket]}" if loss_ns else "none"
    return "–" if has_no_trace(buckets) else format_frac(buckets.get(Bucket.PRODUCTIVE, 0) / device_ns), loss


def _device_time(item: Run) -> str:
    # What is counted of a live run lags behind its life.
    counted = format_ns(item.device_ns)
    is_partial = item.account and (item.state == RunState.RUNNING or awaits_account(item))
    return f"{counted} so far" if is_partial else counted


def _productive(item: Run) -> str:
    account = listed_account(item)
    if account is None or has_no_trace(account):
        return "–"
    return format_frac(account.get(Bucket.PRODUCTIVE, 0) / item.device_ns)


def _largest_loss(item: Run) -> str:
    account = listed_account(item)
    if account is None:
        return "–"
    bucket, loss_ns = largest_loss(account)
    return f"{format_frac(loss_ns / item.device_ns)} {BUCKET_LABEL[bucket]}" if loss_ns else "none"


def _saving(saving: FindingSaving) -> str:
    if saving.value is None:
        return "–"
    per = saving.unit.removeprefix("ns")  # /step, /recording, or nothing
    return f"{format_ns(saving.value)}{per}"


def _interval(low: int | None, high: int | None) -> str:
    return "–" if low is None or high is None else f"{format_ns(low)} – {format_ns(high)}"
