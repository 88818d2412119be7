"""`tightship show`: one run on one screen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.capture import Capture
from tightship_platform.results.codec import decode
from tightship_platform.results.finding import Finding, FindingSaving
from tightship_platform.results.host import count_devices
from tightship_platform.results.named import one_trace_href
from tightship_platform.results.run import RunDetail
from tightship_platform.results.run_account import BUCKET_LABEL, counted_until_ns, has_no_trace, largest_loss, losses
from tightship_platform.results.run_report import RunReport
from tightship_platform.settings import load_settings
from tightship_platform.units import format_frac, format_ns, now_ns, plural
from tightship_platform.vocabulary import LIVE, Bucket, CaptureState, RunState, SavingUnit

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 5
"""Of many findings or captures so many are shown."""
ALL = 10_000
"""As many as one answer holds."""
COMMAND_SHOWN = 500
"""Longest part of a command, in characters."""
COMMIT_SHOWN = 12
SEEN_HINT = "its job can be captured when it is started as `tightship run -- CMD`"
_LABEL_WIDTH = 10


@click.command()
@click.argument("run")
@json_option(RunReport, "Print one JSON object with all findings and captures.")
def show(run: str, as_json: bool) -> None:
    """Show one run: how it ended and why, where its device time went, what was found in it, and its captures.

    RUN is the id of a run, the beginning of one, or @ for the newest. Each finding has its id, its saving with low and
    high end and how that was obtained, where it is, and what to change.

    \b
    Examples:
      tightship show @
      tightship show 4f2a
      tightship show @train~1             the run of the workflow train before its newest
      tightship show @ --json | jq .run.account
    """
    from tightship_platform.client import ApiClient
    from tightship_platform.commands.named import find_named, page_of

    with ApiClient(load_settings()) as api:
        named = find_named(api, run, "run")
        of_it = {"run": named.id, "limit": ALL}
        report = RunReport(
            run=decode(RunDetail, api.get(f"/runs/{named.id}"), "run"),
            page=page_of(api, named),
            findings=decode(list[Finding], api.get("/findings", of_it), "findings"),
            captures=decode(list[Capture], api.get("/captures", of_it), "captures"),
        )
    if as_json:
        print_json(report)
        return
    from tightship_platform.commands.terminal import wide_console

    _print(report, wide_console())


def _print(report: RunReport, console: Console) -> None:
    run = report.run
    _line(console, _verdict(run), style="bold")
    if run.reason:
        _line(console, _sentence(run.reason), indent=2)
    console.print()
    for label, value in _facts(run):
        _line(console, f"{label:<{_LABEL_WIDTH}}{value}", hanging=_LABEL_WIDTH)
    _whole(console, f"{'Page':<{_LABEL_WIDTH}}{report.page}")
    console.print()
    for line, indent in _account(run):
        _line(console, line, indent=indent)
    console.print()
    _print_findings(report, console)
    console.print()
    _print_captures(report, console)


def _print_findings(report: RunReport, console: Console) -> None:
    if not report.findings:
        _line(console, _no_finding(report))
        return
    _line(console, f"{plural(len(report.findings), 'finding')}:")
    width = max(len(str(one.finding)) for one in report.findings[:SHOWN])
    for one in report.findings[:SHOWN]:
        _line(console, f"{one.finding:>{width}}  {one.rule}: {saving_words(one.saving)}", indent=2, hanging=width + 2)
        where = f"rank {one.rank}, {one.where}" if one.rank is not None and one.where else one.where
        for sentence in (_sentence(one.title), where, one.fix):
            if sentence:
                _line(console, sentence, indent=width + 4)
    if len(report.findings) > SHOWN:
        _line(console, f"All {len(report.findings)}: tightship findings --run {report.run.run}", indent=2)


def _print_captures(report: RunReport, console: Console) -> None:
    from tightship_platform.commands.terminal import clock

    run = report.run
    if not report.captures:
        hint = "; only a live run can be captured"
        if run.is_seen:
            hint = f"; {SEEN_HINT}"
        elif run.state == RunState.RUNNING:
            hint = f"; take one with: tightship profile {run.run} --wait"
        _line(console, f"No capture{hint}")
        return
    _line(console, f"{plural(len(report.captures), 'capture')}:")
    for one in report.captures[:SHOWN]:
        expected = len(one.expected) or len(one.ranks)
        arrived = f"{len(one.ranks)} of {plural(expected, 'trace')}, " if expected else ""
        _line(console, f"{one.capture}  {one.state}, {arrived}requested {clock(one.requested_ns)}", indent=2)
        if one.reason:
            _line(console, _sentence(one.reason), indent=4)
        if one.ranks:
            _whole(console, f"    {urljoin(report.page, one_trace_href(one.capture))}")
    if len(report.captures) > SHOWN:
        _line(console, f"All {len(report.captures)}: tightship captures --run {run.run}", indent=2)


def _verdict(run: RunDetail) -> str:
    lasted = format_ns((run.end_ns if run.end_ns is not None else now_ns()) - run.start_ns)
    how = {
        RunState.RUNNING.value: f"running for {lasted}",
        RunState.FINISHED.value: f"finished after {lasted}",
        RunState.FAILED.value: f"failed after {lasted}",
        RunState.LOST.value: f"lost after {format_ns(run.last_seen_ns - run.start_ns)}",
        RunState.UNKNOWN.value: f"ended after {lasted}, how is not known",
    }.get(run.state, f"{run.state} after {lasted}")
    simulated = " (simulated)" if run.simulated else ""
    simulated += f" (imported: {run.fleet})" if run.fleet != LIVE else ""
    named = f"{run.run} ({run.name})" if run.name else run.run
    return f"{run.workflow}, run {named}{simulated}: {how}"


def _facts(run: RunDetail) -> Iterator[tuple[str, str]]:
    from tightship_platform.commands.terminal import clock

    by = f" by {run.user}" if run.user else ""
    on = f" on {run.host}" if run.host else ""
    yield "Started", f"{clock(run.start_ns)}{by}{on}"
    if run.is_seen:
        yield "Source", "seen by its host's agent; `tightship run` did not start it, so no steps are counted"
    if run.waiting_ns is not None:
        yield "Waited", f"{format_ns(run.waiting_ns)} in the scheduler's queue"
    if run.end_ns is not None:
        yield "Ended", clock(run.end_ns) + (f", exit code {run.exit_code}" if run.exit_code is not None else "")
    if run.team or run.owner:
        yield "Team", ", ".join(filter(None, (run.team, f"owner {run.owner}" if run.owner else "")))
    if run.external_id:
        yield "Job", run.external_id
    yield "Devices", count_devices(run.devices) or "none seen"
    if run.steps is not None:
        yield "Steps", f"{run.steps:,}"
    if run.git_commit:
        changes = {True: ", with changes that are not in it", False: ", unchanged", None: ""}[run.git_dirty]
        yield "Commit", f"{run.git_commit[:COMMIT_SHOWN]}{changes}"
    if run.image:
        yield "Image", run.image
    versions = {"torch": run.torch_version, "CUDA": run.cuda_version, "driver": run.driver_version}
    if any(versions.values()):
        yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if run.command:
        command = shlex.join(run.command)
        yield "Command", command if len(command) <= COMMAND_SHOWN else command[: COMMAND_SHOWN - 1] + "…"
    if run.labels:
        yield "Labels", ", ".join(f"{name}={value}" for name, value in sorted(run.labels.items()))


def _account(run: RunDetail) -> Iterator[tuple[str, int]]:
    """Lines, each with its indent."""
    from tightship_platform.commands.terminal import clock

    account, total = run.account, run.device_ns
    if not account or not total:
        yield "Its device time is not accounted for yet: that happens about once a minute.", 0
        return
    until_ns = counted_until_ns(run)
    so_far = "" if until_ns is None else f", counted so far (until {clock(until_ns)})"
    if has_no_trace(account):
        work = "no trace shows how much of it was productive"
    else:
        work = f"{format_frac(account.get(Bucket.PRODUCTIVE, 0) / total)} productive"
    bucket, loss_ns = largest_loss(account)
    loss = f"; largest loss: {BUCKET_LABEL[bucket]}, {format_frac(loss_ns / total)}" if loss_ns else ""
    yield f"Device time {format_ns(total)}{so_far}: {work}{loss}.", 0
    rows = [(Bucket.PRODUCTIVE, account.get(Bucket.PRODUCTIVE, 0)), *losses(account)]
    for bucket, spent_ns in rows:
        if spent_ns:
            yield f"{BUCKET_LABEL[bucket]:<14}{format_ns(spent_ns):>10}{format_frac(spent_ns / total):>10}", 2


def saving_words(saving: FindingSaving) -> str:
    """Such as `5.00 ms/step (4.00 ms to 6.00 ms, simulated), 25.0 % of the step`."""
    if saving.value is None:
        return "no saving is known"
    per = saving.unit.removeprefix("ns")  # /step, /recording, or nothing
    bounds = "" if saving.low is None else f"{format_ns(saving.low)} to {format_ns(saving.high)}, "
    share = "" if saving.share_frac is None else f", {format_frac(saving.share_frac)} of the {_whole_of(saving)}"
    return f"{format_ns(saving.value)}{per} ({bounds}{saving.method}){share}"


def _whole_of(saving: FindingSaving) -> str:
    return SavingUnit(saving.unit).whole if saving.unit in set(SavingUnit) else "device time"


def _no_finding(report: RunReport) -> str:
    analyzed = [one for one in report.captures if one.state == CaptureState.ANALYZED]
    traces = sum(rank.error is None for one in analyzed for rank in one.ranks)
    if traces:
        return f"No finding: {plural(traces, 'trace')} analyzed, and no rule found anything to change."
    return "No finding, as no trace was analyzed."


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _line(console: Console, text: str, *, indent: int = 0, hanging: int = 0, style: str = "") -> None:
    """A paragraph, broken where the terminal ends; lines after the first are indented by `hanging` more."""
    from rich.text import Text

    from tightship_platform.text import printable

    shown = Text(printable(text), style=style)
    width = max(console.width - indent - hanging, 20)
    first, *rest = shown.wrap(console, max(console.width - indent, 20)) or [shown]
    lines = [first]
    if rest:
        # What follows the first line has less room: it is broken once more.
        lines += Text(shown.plain[len(first.plain) :].lstrip(), style=style).wrap(console, width)
    for number, line in enumerate(lines):
        line.rstrip()
        console.print(Text(" " * (indent + (hanging if number else 0))) + line, soft_wrap=True)


def _whole(console: Console, text: str) -> None:
    """A line that is never broken: an address that somebody clicks or copies."""
    from rich.text import Text

    from tightship_platform.text import printable

    console.print(Text(printable(text)), soft_wrap=True)
