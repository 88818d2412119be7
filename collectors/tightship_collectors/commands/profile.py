"""`tightship profile`: ask for one trace per rank of a live run, and watch it arrive."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.errors import Conflict, Invalid, ServerUnreachable, TightshipError
from tightship_platform.results.capture import Capture
from tightship_platform.results.codec import decode
from tightship_platform.results.workflow import WorkflowSchedule
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_MS, NS_PER_S, format_bytes, format_ns, parse_duration_ns, plural
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import (
    MAX_CAPTURE_NS,
    MAX_ITERATIONS,
    MAX_PASSES,
    MIN_CAPTURE_NS,
    STRETCHED,
    CaptureParams,
    CaptureRequest,
)

if TYPE_CHECKING:
    from tightship_platform.client import ApiClient

POLL_S = 0.25
MAX_TIMEOUT_NS = 24 * 3600 * NS_PER_S
DURATIONS = f"{MIN_CAPTURE_NS // NS_PER_MS}ms to {MAX_CAPTURE_NS // NS_PER_S}s"
"""Written as the option takes them."""

Show = Callable[[Capture], None]


@click.command()
@click.argument("target")
@click.option("--duration", metavar="TIME", help=f"Length of the recording, {DURATIONS}.  [default: 1s]")
@click.option("--iterations", type=int, help=f"Record so many optimizer steps instead, 1 to {MAX_ITERATIONS}.")
@click.option(
    "--stacks/--no-stacks", default=True, show_default=True, help="Record the Python stack of every operator."
)
@click.option("--shapes/--no-shapes", default=True, show_default=True, help="Record the shapes of operator inputs.")
@click.option("--memory", is_flag=True, help="Record every allocation, too.")
@click.option(
    "--passes",
    type=click.IntRange(1, MAX_PASSES),
    default=MAX_PASSES,
    show_default=True,
    help=f"2: where recording makes steps more than {STRETCHED:g} times as long, record once more without stacks and "
    "shapes; 1: never.",
)
@click.option("--insist", is_flag=True, help="Also record processes without an exit guard; they may abort at exit.")
@click.option("--wait", is_flag=True, help="Wait until the traces are analyzed.")
@click.option("--timeout", default="120s", show_default=True, metavar="TIME", help="How long --wait waits.")
@click.option(
    "--every",
    metavar="TIME",
    help="Capture every live run of the workflow TARGET this often; `off` stops it.",
)
@json_option(Capture, "Print JSON; with --every {workflow, schedule{every_ns, params}}, else the capture.")
def profile(
    target: str,
    duration: str | None,
    iterations: int | None,
    stacks: bool,
    shapes: bool,
    memory: bool,
    passes: int,
    insist: bool,
    wait: bool,
    timeout: str,
    every: str | None,
    as_json: bool,
) -> None:
    """Capture one trace per rank of a live run, without touching its code.

    TARGET is a run's id, the beginning of one, or @ for the newest run; a workflow's name, for its newest live run; or
    the id of a process on this host, a number of up to nine digits.

    With --wait the exit code is 0 once the traces are analyzed, and 2 if they failed, with the reason. Ctrl-C cancels
    the capture then.

    \b
    Examples:
      tightship profile vision-base --wait
      tightship profile @ --duration 5s --no-stacks
      tightship profile vision-base --every 1h
    """
    duration_ns, iterations = _window(duration, iterations)
    params = CaptureParams(
        duration_ns=duration_ns,
        iterations=iterations,
        stacks=stacks,
        shapes=shapes,
        memory=memory,
        insist=insist,
        passes=passes,
    )
    timeout_ns = parse_duration_ns(timeout)
    if not 0 < timeout_ns <= MAX_TIMEOUT_NS:
        raise Invalid("--timeout", timeout, "more than 0 and at most 24h")
    from tightship_platform.client import ApiClient

    with ApiClient(load_settings()) as api:
        if every is not None:
            if wait:
                raise Invalid("--wait", True, "not to be used with --every, which has no end to wait for")
            _schedule(api, target, every, params, as_json)
            return
        from tightship_collectors.kineto.target import resolve_target

        answer = api.post("/captures", CaptureRequest(target=resolve_target(target), params=params))
        capture = decode(Capture, answer, "capture")
        if not wait:
            _print(capture, as_json)
            return
        try:
            with _progress(quiet=as_json) as show:
                capture = _follow(api, capture, timeout_ns, show)
        except KeyboardInterrupt:
            raise _interrupted(api, capture) from None
        _print(capture, as_json)
        if not as_json:
            _print_page(api, capture)
        _judge(capture, timeout)


def _window(duration: str | None, iterations: int | None) -> tuple[int | None, int | None]:
    """How long to record: in nanoseconds, or in iterations."""
    if iterations is not None:
        if duration is not None:
            raise Invalid("--iterations", iterations, "to stand alone: a recording has either a duration or iterations")
        if not 1 <= iterations <= MAX_ITERATIONS:
            raise Invalid("--iterations", iterations, f"1 to {MAX_ITERATIONS}")
        return None, iterations
    duration_ns = parse_duration_ns(duration or "1s")
    if not MIN_CAPTURE_NS <= duration_ns <= MAX_CAPTURE_NS:
        raise Invalid("--duration", duration, DURATIONS)
    return duration_ns, None


def _schedule(api: ApiClient, workflow: str, every: str, params: CaptureParams, as_json: bool) -> None:
    import dataclasses
    from urllib.parse import quote

    every_ns = None if every == "off" else parse_duration_ns(every)
    body = {"every_ns": every_ns, "params": dataclasses.asdict(params)}
    answer = api.post(f"/workflows/{quote(workflow, safe='')}/schedule", body)
    if as_json:
        print_json(decode(WorkflowSchedule, answer, "schedule"))
    elif every_ns is None:
        click.echo(f"{_plain(workflow)}: no captures by schedule any more")
    else:
        click.echo(f"{_plain(workflow)}: every live run is captured every {format_ns(every_ns)}")


def _follow(api: ApiClient, capture: Capture, timeout_ns: int, show: Show) -> Capture:
    """The capture once it has ended, or as it stands after the time-out."""
    deadline_s = time.monotonic() + timeout_ns / NS_PER_S
    while True:
        show(capture)
        left_s = deadline_s - time.monotonic()
        if CaptureState(capture.state).is_final or left_s <= 0:
            return capture
        time.sleep(min(POLL_S, left_s))
        # The capture outlives a server that is restarted meanwhile; so does whoever waits for it.
        with contextlib.suppress(ServerUnreachable):
            capture = decode(Capture, api.get(f"/captures/{capture.capture}"), "capture")


class Interrupted(TightshipError):
    """Ctrl-C ended the wait."""

    exit_code = 128 + signal.SIGINT


def _interrupted(api: ApiClient, capture: Capture) -> Interrupted:
    """Cancel the capture; what to say of it."""
    from tightship_platform.client import ApiError

    key = capture.capture
    try:
        api.post(f"/captures/{key}/cancel", None)
    except ApiError as error:
        return Interrupted(f"The wait was interrupted: {error}")
    except TightshipError as error:
        hint = f"cancel it with: tightship captures cancel {key}"
        return Interrupted(f"The wait was interrupted, and capture {key} could not be cancelled ({error}); {hint}")
    return Interrupted(f"The wait was interrupted, and capture {key} of run {capture.run} is cancelled")


def _judge(capture: Capture, timeout: str) -> None:
    """Raise unless the capture is analyzed."""
    state = CaptureState(capture.state)
    name = f"Capture {capture.capture} of run {capture.run}"
    if state in (CaptureState.FAILED, CaptureState.EXPIRED):
        raise Conflict(f"{name} {'has failed' if state == CaptureState.FAILED else 'has expired'}: {_reason(capture)}")
    if state != CaptureState.ANALYZED:
        waits = f" ({_reason(capture)})" if capture.reason else ""
        raise Conflict(f"{name} is still {state} after {timeout}{waits}; see `tightship captures`")


def _print(capture: Capture, as_json: bool) -> None:
    if as_json:
        print_json(capture)
        return
    name = f"Capture {capture.capture} of {_plain(capture.workflow)}, run {capture.run}"
    if not CaptureState(capture.state).is_final:
        click.echo(f"{name}: {capture.state}. Follow it with: tightship captures --run {capture.run}")
    elif capture.state == CaptureState.ANALYZED:
        if capture.passes_reason:
            click.echo(f"{name}: {_plain(capture.passes_reason)}.")
        size = sum(rank.bytes for rank in capture.ranks)
        click.echo(f"{name}: {plural(len(capture.ranks), 'trace')}, {format_bytes(size)}", nl=False)
        click.echo(f", {capture.latency_s:.1f} s after the request." if capture.latency_s is not None else ".")
        click.echo(f"What they show: tightship findings --run {capture.run}")


def _print_page(api: ApiClient, capture: Capture) -> None:
    from tightship_platform.commands.named import find_named, page_of

    with contextlib.suppress(TightshipError):  # what became of the capture is known all the same
        click.echo(f"Page: {page_of(api, find_named(api, capture.capture, 'capture'))}")


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Show]:
    """A line on stderr that grows with the stages, where somebody is looking; else nothing."""
    if quiet or not sys.stderr.isatty():
        yield lambda capture: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("dots")
    with Live(spinner, console=Console(stderr=True), refresh_per_second=8, transient=True) as live:

        def show(capture: Capture) -> None:
            spinner.update(text=Text(_stages(capture)))
            live.refresh()

        yield show


def _stages(capture: Capture) -> str:
    """Such as `requested → leased 0.4 s → armed 0.4 s`."""
    order = [state.value for state in CaptureState]
    entered = sorted(capture.stages.items(), key=lambda item: order.index(item[0]))
    parts = [
        stage if stage == CaptureState.REQUESTED else f"{stage} {(at_ns - capture.requested_ns) / NS_PER_S:.1f} s"
        for stage, at_ns in entered
    ]
    return " → ".join(parts) + (f": {_reason(capture)}" if capture.reason else "")


def _reason(capture: Capture) -> str:
    return _plain(capture.reason or "no reason was given")


def _plain(text: str) -> str:
    """One line without control characters, whatever the server sends."""
    return "".join(c if c.isprintable() else " " for c in text)
