"""The first line of every page: the answer in words, made of prepared numbers.

A sentence is a list of parts: plain text, or a number (or name) with the address of what proves it. Pages draw it with
components; the first paint writes the same parts into the HTML that the server sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from tightship_analyzers.report.sentences import headline
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.buckets import BUCKET_CLAUSE
from tightship_dashboard.sentences.links import Answer, Link, Part, finding_href, run_href, runs_href
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.capture import Capture
from tightship_platform.results.finding import Finding
from tightship_platform.results.fleet import NO_TEAM, NOBODY, FleetAccount
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.results.run import Run
from tightship_platform.results.run_account import as_bucket, counted_until_ns, has_no_trace, losses
from tightship_platform.units import plural
from tightship_platform.vocabulary import Bucket, CaptureState, RunState, SavingUnit

RANGE_WORDS = {"24h": "24 hours", "7d": "7 days", "30d": "30 days"}


_ONE_IS = {"running": "is live", "finished": "has finished", "failed": "failed", "lost": "was lost"}
_MANY_ARE = {"running": "are live", "finished": "have finished", "failed": "failed", "lost": "were lost"}


def fleet(account: FleetAccount, opportunities: Sequence[Opportunity], range_key: str) -> Answer:
    """Where the device-hours of a time range went, and what gives most back."""
    during = f"In the last {RANGE_WORDS[range_key]}"
    total, buckets = account.device_ns, account.buckets
    if total <= buckets.get(Bucket.UNALLOCATED, 0):
        return [f"{during} no run held a device."]
    parts: list[Part] = [f"{during}, "]
    if has_no_trace(buckets):
        parts += ["no trace shows how much of "]
    else:
        parts += [Link(fmt.share(buckets.get(Bucket.PRODUCTIVE, 0), total), "#account"), " of "]
    parts += [Link(fmt.device_time(total), runs_href()), " were productive"]
    parts += _largest_loss(buckets, total)
    bucket, value = losses(buckets)[0]
    parts += [*_mostly_by(account, bucket, value), "."]
    if opportunities:
        first = opportunities[0]
        won = "" if first.recoverable_device_ns is None else f", saves {saving_words(first)}"
        parts += [
            " Top opportunity: ",
            Link(fmt.name(first.workflow), runs_href(workflow=first.workflow)),
            f"{won}: ",
            Link(_without_stop(fmt.name(first.title, limit=300)), opportunity_href(first)),
            ".",
        ]
    return parts


def saving_words(opportunity: Opportunity) -> str:
    """The saving of an opportunity and how it was obtained; '–' where it is not known."""
    value = fmt.span(opportunity.recoverable_device_ns, opportunity.low_ns, opportunity.high_ns)
    return f"{value}, {opportunity.method}" if opportunity.method else value


def opportunity_href(opportunity: Opportunity) -> str:
    """The finding behind an opportunity; its workflow's runs when none is named."""
    ids = opportunity.findings
    return finding_href(ids[0]) if ids else runs_href(workflow=opportunity.workflow)


def runs(rows: Sequence[Run], *, workflow: str | None = None, state: str | None = None) -> Answer:
    """How many runs live, and how the others ended; of those that the filters let through."""
    of: list[Part] = [" of ", Link(fmt.name(workflow), runs_href(workflow=workflow))] if workflow else []
    if not rows:
        return ["No run", *of, f" {_ONE_IS.get(state or '', 'is known')}."] if of or state else ["No run is known yet."]
    live = [row for row in rows if row.state == RunState.RUNNING]
    held = sum(len(row.devices) for row in live)
    ended = len(rows) - len(live)
    parts: list[Part] = []
    if live:
        parts += [Link(plural(len(live), "run"), runs_href(workflow=workflow, state="running")), *of]
        parts += [" is live" if len(live) == 1 else " are live"]
        parts += [f" on {plural(held, 'device')}"] if held else []
    elif state is None:
        parts += ["No run", *of, " is live"]
    if state is not None and ended:
        verb = _ONE_IS.get(state, f"is {state}") if ended == 1 else _MANY_ARE.get(state, f"are {state}")
        return [plural(ended, "run"), *of, f" {verb}."]
    if ended:
        failed = sum(row.state == RunState.FAILED for row in rows)
        lost = sum(row.state == RunState.LOST for row in rows)
        parts += [f"; of {plural(ended, 'run that ended', 'runs that ended')}, "]
        parts += [Link(f"{failed} failed", runs_href(workflow=workflow, state="failed"))] if failed else ["none failed"]
        parts += [" and ", Link(f"{lost} lost", runs_href(workflow=workflow, state="lost"))] if lost else []
    return [*parts, "."]


def found_runs(rows: Sequence[Run], search: str, *, most: int) -> Answer:
    """How many runs a search has found, and how they stand.

    :param most: as many as are looked for.
    """
    text = fmt.name(search, limit=60).replace("`", "")
    or_more = " or more" if len(rows) >= most else ""
    parts: list[Part] = [f"{plural(len(rows), 'run')}{or_more} {'matches' if len(rows) == 1 else 'match'} `{text}`"]
    live = sum(row.state == RunState.RUNNING for row in rows)
    failed = sum(row.state == RunState.FAILED for row in rows)
    parts += [f"; {live} {'is' if live == 1 else 'are'} live"] if live else []
    parts += [f"{' and' if live else ';'} {failed} failed"] if failed else []
    return [*parts, "."]


def one_run(run: Run, findings: Sequence[Finding], now_ns: int) -> Answer:
    """How the run stands, what its device time did, and its worst finding."""
    lasted = fmt.clock((run.end_ns or now_ns) - run.start_ns)
    stands: dict[str, str] = {
        RunState.RUNNING: f"Running for {lasted}",
        RunState.FINISHED: f"Finished after {lasted}",
        RunState.FAILED: f"Failed after {lasted}{_exit_words(run.exit_code)}",
        RunState.LOST: f"Lost after {lasted}: no heartbeat and no end record arrived",
        RunState.CANCELLED: f"Cancelled after {lasted}",
        RunState.TIMEOUT: f"Reached its time limit after {lasted}",
        RunState.OUT_OF_MEMORY: f"Out of memory after {lasted}",
        RunState.UNKNOWN: f"Ended after {lasted}; how is not known",
    }
    parts: list[Part] = [stands.get(run.state, f"{run.state} after {lasted}")]
    account, total = run.account, run.device_ns
    if account and total:
        counted_ns = counted_until_ns(run)
        if counted_ns is not None:
            parts += [f". Counted so far, over its first {fmt.clock(counted_ns - run.start_ns)}"]
        held = Link(fmt.device_time(total), "#account")
        if has_no_trace(account):
            parts += [": no trace shows how much of its ", held, " were productive"]
        else:
            parts += [": ", Link(fmt.share(account.get(Bucket.PRODUCTIVE, 0), total), "#account"), " of its "]
            parts += [held, " were productive"]
        parts += _largest_loss(account, total)
    else:
        parts += ["; its device time is not yet accounted for"]
    parts += ["."]
    if findings:
        worst = findings[0]
        parts += [" Worst finding: ", Link(_without_stop(fmt.name(worst.title)), finding_href(worst.finding))]
        saving = worst.saving
        whole = SavingUnit(saving.unit).whole if saving.unit else "device time"
        reported = saving.share_frac is None or "%" in worst.title  # most titles name the share themselves
        parts += ["." if reported else f", {fmt.percent(saving.share_frac)} of the {whole}."]
    return parts


def one_finding(finding: Finding, step_ns: int | None) -> Answer:
    """What is wrong and what it costs."""
    saving = finding.saving
    value = fmt.span(saving.value, saving.low, saving.high)
    parts: list[Part] = [_without_stop(fmt.name(finding.title))]
    if saving.value is None:
        parts += [". Its cost could not be estimated"]
    elif saving.unit == SavingUnit.RECORDING:
        parts += [". Without it the recording would be ", Link(value, "#gap"), " shorter"]
    elif saving.unit == SavingUnit.STEP:
        of = f" of {fmt.duration(step_ns)}" if step_ns else ""
        parts += [". Without it each step", of, " would be ", Link(value, "#gap"), " shorter"]
    else:
        parts += [". It costs ", Link(value, "#cost"), " of device time"]
    if saving.share_frac is not None:
        parts += [" (", Link(fmt.percent(saving.share_frac), "#cost"), f", {saving.method})"]
    workflow = finding.workflow
    return [*parts, ", in ", Link(fmt.name(workflow), runs_href(workflow=workflow)), "."]


def one_trace(capture: Capture, analysis: RunAnalysis | None, zone: ZoneInfo) -> Answer:
    """Where the time of a capture's traces went; as long as nobody knows, how far the capture is."""
    run = Link(fmt.name(capture.workflow), run_href(capture.run))
    if analysis is not None:
        ranks = analysis.ranks
        whose = f"Rank{fmt.NBSP}{ranks[0].rank}" if len(ranks) == 1 else plural(len(ranks), "rank")
        recorded_ns = capture.stages.get(CaptureState.RECORDING)
        recorded = f", recorded {fmt.moment(recorded_ns, zone)}" if recorded_ns else ""
        return [headline(analysis), f" {whose} of ", run, f"{recorded}."]
    of: list[Part] = ["a run of ", run]
    match capture.state:
        case CaptureState.ANALYZED:
            return ["The analysis of this capture of ", *of, " cannot be read by this release."]
        case CaptureState.UPLOADED:
            return ["The traces of this capture of ", *of, " are being analyzed."]
        case CaptureState.FAILED | CaptureState.EXPIRED:
            why = f": {_without_stop(fmt.name(capture.reason, limit=300))}" if capture.reason else ""
            return [
                "This capture of ",
                *of,
                f" {'failed' if capture.state == CaptureState.FAILED else 'expired'}{why}.",
            ]
    return ["This capture of ", *of, f" is {fmt.name(capture.state)}; its traces are analyzed when they have arrived."]


def plain(answer: Answer) -> str:
    """The sentence as text, such as for a page's description."""
    return "".join(part.text if isinstance(part, Link) else part for part in answer)


def _largest_loss(buckets: dict[str, int], total: int) -> list[Part]:
    bucket, value = losses(buckets)[0]
    if value <= 0:
        return []
    # No run has it.
    href = "#account" if bucket is Bucket.UNALLOCATED else runs_href(by=bucket)
    return ["; ", Link(fmt.share(value, total), href), f" {BUCKET_CLAUSE[bucket]}"]


def _mostly_by(by_team: FleetAccount, bucket: Bucket, value: int) -> list[Part]:
    held = {
        group.key: sum(v for b, v in group.buckets.items() if as_bucket(b) is bucket)
        for group in by_team.groups
        if group.device_ns
    }
    named = {team: v for team, v in held.items() if team not in (NO_TEAM, NOBODY)}
    if value <= 0 or len(held) < 2 or not named:
        return []
    team, most = max(named.items(), key=lambda row: row[1])
    return [", most of it by ", Link(f"team {fmt.name(team)}", "#teams")] if 2 * most > value else []


def _exit_words(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    if 128 < exit_code < 160:
        return f" by signal {exit_code - 128}"
    return f" with exit code {exit_code}"


def _without_stop(text: str) -> str:
    return text.rstrip(". ")
