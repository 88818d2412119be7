"""`tightship runs`, `captures`, `findings` and `opportunities`: what the server knows, as tables or JSON."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tightship_platform.commands.delete import delete
from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.capture import Capture
from tightship_platform.results.codec import decode
from tightship_platform.results.finding import Finding, FindingSaving
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.results.run import Run
from tightship_platform.results.run_account import (
    BUCKET_LABEL,
    awaits_account,
    has_no_trace,
    largest_loss,
    listed_account,
)
from tightship_platform.settings import load_settings
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import Bucket, CaptureState, RunState

T = TypeVar("T")


def _ask(kind: type[T], path: str, **params: Any) -> T:
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        return decode(kind, api.get(path, params), path.removeprefix("/"))


def _in_pages(what: str, most: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`--limit` and `--after` of a list; all of it by asking again after the last one."""

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        after = click.option("--after", metavar=what, help="Begin after this one: the last one of an earlier list.")
        bounds = click.IntRange(1, 10_000)
        limit = click.option("--limit", type=bounds, default=most, show_default=True, help="Maximum number to list.")
        return limit(after(command))

    return declare


@click.group(invoke_without_command=True)
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--state", type=click.Choice([state.value for state in RunState]), help="Only runs in this state.")
@_in_pages("RUN", 200)
@json_option(Run)
@click.pass_context
def runs(
    context: click.Context, workflow: str | None, state: str | None, limit: int, after: str | None, as_json: bool
) -> None:
    """List runs, newest first."""
    if context.invoked_subcommand is not None:
        return
    items = _ask(list[Run], "/runs", workflow=workflow, state=state, limit=limit, after=after)
    if as_json:
        print_json(items)
        return
    from tightship_platform.commands.terminal import Column, clock, print_table

    print_table(
        [
            Column("RUN", whole=True),
            Column("WORKFLOW"),
            Column("TEAM", spare=True),
            Column("STATE"),
            Column("STARTED", spare=True),
            Column("TOOK", right=True, spare=True),
            Column("STEPS", right=True, spare=True),
            Column("DEVICE TIME", right=True),
            Column("PRODUCTIVE", right=True),
            Column("LARGEST LOSS"),
        ],
        [
            (
                item.run,
                item.workflow,
                item.team or "–",
                _state(item),
                clock(item.start_ns),
                format_ns(None if item.end_ns is None else item.end_ns - item.start_ns),
                "–" if item.steps is None or awaits_account(item) else item.steps,
                _device_time(item),
                _productive(item),
                _largest_loss(item),
            )
            for item in items
        ],
        empty=(
            "No such run. See all of them with: tightship runs"
            if workflow or state
            else _nothing(after, "No run yet. Launch one with: tightship run --workflow NAME -- python train.py")
        ),
    )


runs.add_command(delete)


@click.command()
@click.option("--run", metavar="RUN", help="Only captures of this run.")
@_in_pages("CAPTURE", 200)
@json_option(Capture)
def captures(run: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List captures (requests for a trace of a running job), newest first."""
    items = _ask(list[Capture], "/captures", run=run, limit=limit, after=after)
    if as_json:
        print_json(items)
        return
    from tightship_platform.commands.terminal import Column, clock, print_table

    print_table(
        [
            Column("CAPTURE", whole=True),
            Column("RUN", whole=True),
            Column("WORKFLOW"),
            Column("STATE"),
            Column("REQUESTED", spare=True),
            Column("BY", spare=True),
            Column("TRACES", right=True, spare=True),
            Column("LATENCY", right=True, spare=True),
            Column("REASON", prose=True),
        ],
        [
            (
                item.capture,
                item.run,
                item.workflow,
                item.state,
                clock(item.requested_ns),
                item.requested_by,
                f"{len(item.ranks)}/{len(item.expected)}" if item.expected else len(item.ranks),
                "–" if item.latency_s is None else f"{item.latency_s:.1f} s",
                item.reason or item.passes_reason or "",
            )
            for item in items
        ],
        empty=_nothing(after, "No capture yet. Ask for one of a running job with: tightship profile WORKFLOW"),
    )


@click.command()
@click.option("--run", metavar="RUN", help="Only findings of this run.")
@click.option("--workflow", metavar="NAME", help="Only findings of this workflow.")
@_in_pages("FINDING", 1000)
@json_option(Finding)
def findings(run: str | None, workflow: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List findings, the largest saving first: what wastes device time, where, and what to change."""
    items = _ask(list[Finding], "/findings", run=run, workflow=workflow, limit=limit, after=after)
    if as_json:
        print_json(items)
        return
    from tightship_platform.commands.terminal import Column, print_table

    print_table(
        [
            Column("RULE", whole=True),
            Column("WORKFLOW"),
            Column("RUN", whole=True, spare=True),
            Column("RANK", right=True, spare=True),
            Column("WHERE"),
            Column("SAVES", right=True),
            Column("SHARE", right=True, spare=True),
            Column("FIX", prose=True),
        ],
        [
            (
                item.rule,
                item.workflow,
                item.run,
                "–" if item.rank is None else item.rank,
                item.where or "–",
                _saving(item.saving),
                format_frac(item.saving.share_frac),
                item.fix,
            )
            for item in items
        ],
        empty="" if items else _nothing(after, "") or _no_finding(run, workflow),
    )


@click.command()
@_in_pages("OPPORTUNITY", 1000)
@json_option(Opportunity)
def opportunities(limit: int, after: str | None, as_json: bool) -> None:
    """List opportunities: what to do first, and how much device time it would recover."""
    items = _ask(list[Opportunity], "/opportunities", limit=limit, after=after)
    if as_json:
        print_json(items)
        return
    from tightship_platform.commands.terminal import Column, print_table

    print_table(
        [
            Column("#", right=True),
            Column("WORKFLOW"),
            Column("WHAT"),
            Column("FREES", right=True),
            Column("LOW–HIGH", right=True),
            Column("OF", right=True, spare=True),
            Column("METHOD"),
            Column("STATE", spare=True),
            Column("FIX", prose=True),
        ],
        [
            (
                item.position,
                item.workflow,
                " + ".join(item.rules),
                format_ns(item.recoverable_device_ns),
                "–" if item.low_ns is None else f"{format_ns(item.low_ns)} – {format_ns(item.high_ns)}",
                format_ns(item.device_ns),
                item.method or "–",
                item.state,
                item.fix,
            )
            for item in items
        ],
        empty=_nothing(after, "No opportunity. They follow from findings; see: tightship findings"),
    )


def _nothing(after: str | None, at_all: str) -> str:
    return at_all if after is None else f"Nothing comes after {after}."


def _state(item: Run) -> str:
    code = item.exit_code
    return f"{item.state} ({code})" if code else str(item.state)


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


def _no_finding(run: str | None, workflow: str | None) -> str:
    captures = _ask(list[Capture], "/captures", run=run, workflow=workflow, limit=10_000)
    analyzed = [capture for capture in captures if capture.state == CaptureState.ANALYZED]
    traces = sum(rank.error is None for capture in analyzed for rank in capture.ranks)
    if traces:
        return f"No finding: {plural(traces, 'trace')} analyzed, and no rule found anything to change."
    target = shlex.quote(run or workflow or "WORKFLOW")
    return f"No finding, as no trace was analyzed yet; ask for one of a running job with: tightship profile {target}"


def _saving(saving: FindingSaving) -> str:
    if saving.value is None:
        return "–"
    per = saving.unit.removeprefix("ns")  # /step, /recording, or nothing
    return f"{format_ns(saving.value)}{per} ({saving.method})"
