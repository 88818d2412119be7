"""Lists of what the server knows: `tightship runs`, `captures`, `findings`, `opportunities`, `actions`, `hosts`,
`workflows`, `samples`, `fleets`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

import click

from tightship_platform.commands.act import dismiss, reopen
from tightship_platform.commands.cancel import cancel
from tightship_platform.commands.delete import delete
from tightship_platform.commands.edit_run import label, rename
from tightship_platform.commands.filter_options import MOST, filtered, fleet_option, in_pages
from tightship_platform.commands.list_form import ListForm, in_forms
from tightship_platform.results.action import Action
from tightship_platform.results.capture import Capture
from tightship_platform.results.codec import decode
from tightship_platform.results.filters import FilterTexts
from tightship_platform.results.finding import Finding
from tightship_platform.results.fleet import ImportedFleet
from tightship_platform.results.host import Host
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.results.run import Run
from tightship_platform.results.sample import Sample
from tightship_platform.results.workflow import Workflow
from tightship_platform.settings import load_settings
from tightship_platform.units import plural
from tightship_platform.vocabulary import CaptureState, HostState, RunState

T = TypeVar("T")
_LAUNCH = "No run yet. Launch one with: tightship run --workflow NAME -- python train.py"


def _ask(kind: type[T], path: str, filters: FilterTexts | None, **params: Any) -> T:
    """What the server lists. Times without a zone are this machine's."""
    query = {} if filters is None else filters.read(zone=None).query()
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        return decode(kind, api.get(path, query | params), path.removeprefix("/"))


def _tables() -> ModuleType:
    """What draws them, which is slow to import."""
    from tightship_platform.commands import list_tables

    return list_tables


@click.group(invoke_without_command=True)
@filtered("started", RunState)
@in_pages("RUN", 200)
@in_forms(Run)
@click.pass_context
def runs(context: click.Context, filters: FilterTexts, limit: int, after: str | None, form: ListForm) -> None:
    """List runs, newest first.

    \b
    tightship runs --since 1d --state failed --label lr=3e-4
    tightship runs --commit 5eed1e --host gpu17 --format csv
    """
    if context.invoked_subcommand is not None:
        return
    form.show(
        lambda: _ask(list[Run], "/runs", filters, limit=limit, after=after),
        lambda items: _tables().runs(items),
        lambda: _nothing("runs", filters, after, _LAUNCH),
    )


runs.add_command(delete)
runs.add_command(label)
runs.add_command(rename)


@click.group(invoke_without_command=True)
@click.option("--run", metavar="RUN", help="Only captures of this run.")
@filtered("was requested", CaptureState)
@in_pages("CAPTURE", 200)
@in_forms(Capture)
@click.pass_context
def captures(
    context: click.Context, run: str | None, filters: FilterTexts, limit: int, after: str | None, form: ListForm
) -> None:
    """List captures (requests for a trace of a running job), newest first.

    \b
    tightship captures --since 2h --state failed
    """
    if context.invoked_subcommand is not None:
        return
    at_all = "No capture yet. Ask for one of a running job with: tightship profile WORKFLOW"
    form.show(
        lambda: _ask(list[Capture], "/captures", filters, run=run, limit=limit, after=after),
        lambda items: _tables().captures(items),
        lambda: _nothing("captures", filters, after, at_all),
    )


captures.add_command(cancel)


@click.command()
@click.option("--run", metavar="RUN", help="Only findings of this run.")
@filtered("was found", RunState, state_of=", of the run")
@in_pages("FINDING", 1000)
@click.option("--brief", is_flag=True, help="Leave the evidence out of JSON and CSV.")
@in_forms(Finding)
def findings(run: str | None, filters: FilterTexts, limit: int, after: str | None, brief: bool, form: ListForm) -> None:
    """List findings, the largest saving first: what wastes device time, where, and what to change.

    \b
    tightship findings --rule starved-input --since 7d --team vision
    """
    form.show(
        lambda: _ask(list[Finding], "/findings", filters, run=run, limit=limit, after=after),
        lambda items: _tables().findings(items),
        lambda: _no_finding(run, filters, after),
        without=("evidence",) if brief else (),
    )


@click.group(invoke_without_command=True)
@fleet_option
@click.option("--dismissed", is_flag=True, help="With those that somebody dismissed.")
@in_pages("OPPORTUNITY", 1000)
@in_forms(Opportunity)
@click.pass_context
def opportunities(
    context: click.Context, fleet: str | None, dismissed: bool, limit: int, after: str | None, form: ListForm
) -> None:
    """List opportunities: what to do first, and how much device time it would recover.

    \b
    tightship apply 3                                       what to change; the next run is compared
    tightship opportunities dismiss 4 --reason 'by design'
    """
    if context.invoked_subcommand is not None:
        return
    at_all = "No opportunity. They follow from findings; see: tightship findings"
    asked = {"fleet": fleet, "dismissed": dismissed or None, "limit": limit, "after": after}
    form.show(
        lambda: _ask(list[Opportunity], "/opportunities", None, **asked),
        lambda items: _tables().opportunities(items),
        lambda: _nothing("opportunities", None, after, at_all),
    )


opportunities.add_command(dismiss)
opportunities.add_command(reopen)


@click.command()
@click.option("--opportunity", metavar="ID", type=int, help="Only those about this opportunity.")
@in_pages("ACTION", 1000)
@in_forms(Action)
def actions(opportunity: int | None, limit: int, after: str | None, form: ListForm) -> None:
    """List what was done about opportunities, newest first: what was predicted, and what was measured."""
    at_all = "Nothing was done yet. Choose one of `tightship opportunities`, then: tightship apply OPPORTUNITY"
    form.show(
        lambda: _ask(list[Action], "/actions", None, opportunity=opportunity, limit=limit, after=after),
        lambda items: _tables().actions(items),
        lambda: _nothing("actions", None, after, at_all),
    )


@click.command()
@filtered("was heard of", HostState)
@in_pages("HOST", 200)
@in_forms(Host)
def hosts(filters: FilterTexts, limit: int, after: str | None, form: ListForm) -> None:
    """List hosts by name, with their devices and what their agents see.

    \b
    tightship hosts --state silent
    """
    form.show(
        lambda: _ask(list[Host], "/hosts", filters, limit=limit, after=after),
        lambda items: _tables().hosts(items),
        lambda: _nothing("hosts", filters, after, "No host has reported. On each one run: tightship agent"),
    )


@click.command()
@filtered("started last", RunState, state_of=": some run of theirs is")
@in_pages("WORKFLOW", 1000)
@in_forms(Workflow)
def workflows(filters: FilterTexts, limit: int, after: str | None, form: ListForm) -> None:
    """List workflows (recurring work: all runs of one name), the one that started last first.

    \b
    tightship workflows --state running --team vision
    """
    form.show(
        lambda: _ask(list[Workflow], "/workflows", filters, limit=limit, after=after),
        lambda items: _tables().workflows(items),
        lambda: _nothing("workflows", filters, after, _LAUNCH),
    )


@click.command()
@click.option("--device", metavar="UUID", help="Only of this device.")
@click.option("--run", metavar="RUN", help="Only of this run, or of a device that it alone held then.")
@click.option("--metric", "metrics", metavar="METRIC", multiple=True, help="Only this metric. Repeatable.")
@filtered("was measured", RunState, state_of=", of the run", host="Only of this host.")
@in_pages("TIME_NS/HOST/DEVICE/RUN/METRIC", 1000)
@in_forms(Sample)
def samples(
    device: str | None,
    run: str | None,
    metrics: tuple[str, ...],
    filters: FilterTexts,
    limit: int,
    after: str | None,
    form: ListForm,
) -> None:
    """List samples (one measured value each), newest first. Without --since or --run: those of the last hour.

    \b
    tightship samples --host gpu17 --metric sm_active_frac --metric memory_used_bytes --since 10m
    tightship samples --run 4f2 --format csv
    """
    named = {"device": device, "run": run, "metric": list(metrics)}
    form.show(
        lambda: _ask(list[Sample], "/samples", filters, limit=limit, after=after, **named),
        lambda items: _tables().samples(items),
        lambda: _no_sample(after, filters, is_about_one=any(named.values())),
    )


@click.command()
@in_forms(ImportedFleet)
def fleets(form: ListForm) -> None:
    """List imported fleets by name: what is known of each, and what its figures take for granted."""
    form.show(
        lambda: _ask(list[ImportedFleet], "/fleets", None),
        lambda items: _tables().fleets(items),
        lambda: "No history is imported; see: tightship import --help",
    )


def _no_sample(after: str | None, filters: FilterTexts, *, is_about_one: bool) -> str:
    if after is not None:
        return f"Nothing comes after {after}."
    if filters == FilterTexts() and not is_about_one:
        return "No sample of the last hour; --since 1d looks further back. On each host run: tightship agent"
    return "Nothing matches. What is there: tightship hosts; samples of the last hour: tightship samples"


def _nothing(name: str, filters: FilterTexts | None, after: str | None, at_all: str) -> str:
    if after is not None:
        return f"Nothing comes after {after}."
    return at_all if filters in (None, FilterTexts()) else f"Nothing matches. See all of them with: tightship {name}"


def _no_finding(run: str | None, filters: FilterTexts, after: str | None) -> str:
    about_runs = replace(filters, rule=None, since=None, until=None, state=None)
    if after is not None or filters != about_runs:
        return _nothing("findings", filters, after, "")
    captures = _ask(list[Capture], "/captures", filters, run=run, limit=MOST)
    analyzed = [capture for capture in captures if capture.state == CaptureState.ANALYZED]
    traces = sum(rank.error is None for capture in analyzed for rank in capture.ranks)
    if traces:
        return f"No finding: {plural(traces, 'trace')} analyzed, and no rule found anything to change."
    target = shlex.quote(run or filters.workflow or "WORKFLOW")
    return f"No finding, as no trace was analyzed yet; ask for one of a running job with: tightship profile {target}"
