"""Carries out the server's captures on this host: leases them, has them recorded, reports, and delivers the traces.

[Note: two passes]
A capture whose recording has stretched the steps (see `step_lengths`) is recorded a second time, with less, by the same
processes. Its first pass stays `written` meanwhile and is delivered; the second is another recording, which begins when
the first has let the processes go. Whatever goes wrong with it costs the second trace only: the capture is then
complete with the first, and says why.

[Note: four threads]
`capture-carry` advances every recording, about twenty times a second, and never waits for the network.
`capture-wait` keeps one request for leases open, which the server answers when a capture is wanted of one of its runs.
`capture-talk` reports, in order per capture, and asks once a second for runs that began after that request.
`capture-deliver` packs and uploads, which may take minutes: runs take turns there, of half a second of packing or one
file to upload, so that none waits for all of another's.
A server that is away therefore delays neither a recording nor the end of a job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.stack_requests import StackRequests
from tightship_collectors.kineto.delivery import Undeliverable, pack_traces, send_traces
from tightship_collectors.kineto.manifest import Manifest, ManifestStore, Phase, lease_of
from tightship_collectors.kineto.recording import Recording, Report
from tightship_collectors.kineto.service import KinetoService
from tightship_collectors.kineto.step_lengths import UntracedSteps
from tightship_platform.client import ApiClient, ApiError
from tightship_platform.errors import Invalid, ServerUnreachable
from tightship_platform.settings import Settings
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import MAX_LEASE_WAIT_S, CaptureReport, Lease, LeaseRequest

log = logging.getLogger(__name__)

LEASE_PERIOD_S = 1.0
RENEWAL_S = 10.0
"""A lease lasts 30 s; renewed this often it survives two lost renewals."""
STEP_S = 0.05
BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses between attempts to reach the server."""
MAX_REFUSALS = 5
"""Uploads of one capture that the server may refuse before it is given up."""
MAX_TICKS = 4096
"""Processes whose controller tick is remembered."""
AT_END_S = 1.5
"""How long the agent's end may wait for the last reports."""

_IN_PROCESS = (Phase.WAITING, Phase.ARMED, Phase.RECORDING, Phase.LINGERING)
"""Phases in which a capture has to do with the run's processes."""
_RENEWED = {
    Phase.WAITING: CaptureState.LEASED,
    Phase.ARMED: CaptureState.ARMED,
    Phase.RECORDING: CaptureState.RECORDING,
    Phase.WRITTEN: CaptureState.WRITTEN,
}


class InHand:
    """A capture of this agent: its recording, and what has not yet been reported to the server."""

    def __init__(self, recording: Recording, outbox: deque[CaptureReport]) -> None:
        self.recording = recording
        self.second: Recording | None = None
        """Its second pass, see [Note: two passes]."""
        self.outbox = outbox
        self.reported_s = time.monotonic()
        self.failures = 0
        """Attempts to deliver in a row that did not reach the server."""
        self.refusals = 0
        """Uploads that the server answered with a no."""
        self.deliver_after_s = 0.0
        self.delivery: Iterator[None] | None = None
        """Its delivery as far as it has come; the deliver thread's own."""
        self.sending = recording
        """The pass whose traces are being delivered."""

    @property
    def manifest(self) -> Manifest:
        """The capture's manifest."""
        return self.recording.manifest

    @property
    def passes(self) -> list[Recording]:
        """Its recordings, the first one first."""
        return [self.recording] if self.second is None else [self.recording, self.second]

    @property
    def current(self) -> Manifest:
        """The manifest of the recording that has to do with the run's processes now, or had to last."""
        if self.second is not None and self.manifest.settled:
            return self.second.manifest
        return self.manifest

    @property
    def in_process(self) -> bool:
        """It has, or will have, to do with the run's processes."""
        return any(one.manifest.phase in _IN_PROCESS or not one.manifest.settled for one in self.passes)

    @property
    def is_deliverable(self) -> bool:
        """There is something to pack or to send, or nothing more to come."""
        if self.manifest.phase is not Phase.WRITTEN:
            return False
        sent = all(rank.stored for rank in self.manifest.ranks)
        second = self.second is not None and self.second.manifest.phase is Phase.WRITTEN
        return not sent or second or self.manifest.passes == 1

    @property
    def is_over(self) -> bool:
        """Nothing is left to be done for it."""
        return not self.outbox and all(one.manifest.phase is Phase.OVER and one.manifest.settled for one in self.passes)


class CaptureExecutor:
    """Give it the live runs about once a second; `close` when the agent ends. Owns its threads and the service."""

    def __init__(self, settings: Settings, client: ApiClient, service: KinetoService) -> None:
        self._host = settings.host_name
        self._stacks = StackRequests(client, settings.host_name)
        self._max_bytes = settings.trace_max_bytes
        self._client = client
        self._service = service
        self._store = ManifestStore(settings.spool_dir)
        self._lock = threading.Lock()
        self._hand: dict[str, InHand] = {}
        self._runs: dict[str, HostRun] = {}
        self._leases: deque[Lease] = deque()
        self._ticks: dict[tuple[int, int], int] = {}
        self._steps = UntracedSteps()
        self._lease_at_s = 0.0
        self._stop = threading.Event()
        self._finish = threading.Event()
        self._carry_now = threading.Event()
        self._talk_now = threading.Event()
        self._wait_now = threading.Event()
        self._waited_for: frozenset[str] = frozenset()
        self._deliver_now = threading.Event()
        self._take_over()
        self._threads = [
            threading.Thread(target=self._loop, args=(step, name), name=f"capture-{name}", daemon=True)
            for name, step in (
                ("carry", self._carry),
                ("talk", self._talk),
                ("deliver", self._deliver),
                ("wait", self._wait),
            )
        ]
        for thread in self._threads:
            thread.start()

    def update(self, runs: Sequence[HostRun]) -> None:
        """The runs that live now on this host."""
        self._service.update(runs)
        recorded = {hand.manifest.run for hand in self._in_hand() if hand.current.phase is not Phase.WAITING}
        with self._lock:
            if runs and not self._runs:
                self._wait_now.set()
            self._runs = {run.run: run for run in runs}
            self._steps.look(runs, recorded, now_ns())

    def close(self) -> None:
        """Give back what was not begun, leave the rest to the next agent, and stop within about two seconds."""
        if self._stop.is_set():
            return
        self._stop.set()
        for event in (self._carry_now, self._talk_now, self._deliver_now, self._wait_now):
            event.set()
        self._threads[0].join(timeout=2)
        for hand in self._in_hand():
            if hand.second is not None and hand.second.release(now_ns()):
                self._store.save(hand.manifest.second_pass(now_ns()))  # the next agent begins it again
            if hand.recording.release(now_ns()):
                self._store.remove(hand.manifest.capture)
                hand.outbox.append(self._report(hand.manifest, CaptureState.REQUESTED, "the agent was stopped"))
        self._finish.set()
        self._talk_now.set()
        self._threads[1].join(timeout=AT_END_S)
        self._service.close()

    # ---- taking captures in hand -------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Go on with what an agent that was killed had in hand."""
        manifests, faults = self._store.load()
        for fault in faults:
            log.warning("a capture left by an earlier agent cannot be read and is dropped: %s", fault)
        for manifest in manifests:
            log.info("capture %s of run %s: taken over while %s", manifest.capture, manifest.run, manifest.phase)
            hand = self._take(manifest)
            hand.reported_s = -RENEWAL_S  # the lease may be about to lapse
            hand.recording.resume(now_ns())
            second = self._store.load_second(manifest.capture) if manifest.passes > 1 else None
            if second is not None:
                self._begin_second(hand, second).resume(now_ns())

    def _take(self, manifest: Manifest) -> InHand:
        outbox: deque[CaptureReport] = deque()

        def report(state: CaptureState, reason: str | None) -> None:
            outbox.append(self._report(manifest, state, reason))
            self._talk_now.set()

        hand = InHand(self._recording(manifest, report), outbox)
        with self._lock:
            self._hand[manifest.capture] = hand
        return hand

    def _recording(self, manifest: Manifest, report: Report) -> Recording:
        def untraced_step(pid: int) -> int | None:
            with self._lock:
                return self._steps.typical_ns(manifest.run, pid)

        return Recording(
            manifest,
            service=self._service,
            store=self._store,
            report=report,
            ticks=self._ticks,
            untraced_step=untraced_step,
        )

    def _begin_second(self, hand: InHand, second: Manifest) -> Recording:
        """Take the second pass in hand: it reports nothing but that it will not come."""
        manifest = hand.manifest

        def report(state: CaptureState, reason: str | None) -> None:
            if state is CaptureState.FAILED and manifest.phase is Phase.WRITTEN:
                manifest.passes, manifest.passes_reason = 1, f"recorded once: {reason}"
                self._store.save(manifest)
                hand.outbox.append(self._report(manifest, CaptureState.WRITTEN, None))
                self._talk_now.set()

        hand.second = self._recording(second, report)
        return hand.second

    def _accept(self, lease: Lease) -> None:
        with self._lock:
            held = self._hand.get(lease.capture)
            run = self._runs.get(lease.run)
        if held is not None:
            # The lease had lapsed (the server or we were away) and came back to us: say where we are and go on.
            held.manifest.attempt = max(held.manifest.attempt, lease.attempt)
            held.reported_s = -RENEWAL_S
            self._talk_now.set()
        elif run is not None:
            manifest = Manifest.of_lease(lease, run_dir=run.run_dir, uid=run.uid, now_ns=now_ns())
            self._store.save(manifest)
            self._take(manifest)

    def _report(self, manifest: Manifest, state: CaptureState, reason: str | None) -> CaptureReport:
        return CaptureReport(
            host=self._host,
            state=state.value,
            reason=reason,
            expected=manifest.expected,
            passes=manifest.passes,
            passes_reason=manifest.passes_reason,
        )

    def _in_hand(self) -> list[InHand]:
        with self._lock:
            return list(self._hand.values())

    # ---- the threads -------------------------------------------------------------------------------------------------

    def _loop(self, step: Any, name: str) -> None:
        wake = {
            "carry": self._carry_now,
            "talk": self._talk_now,
            "deliver": self._deliver_now,
            "wait": self._wait_now,
        }[name]
        end = self._finish if name == "talk" else self._stop
        while not end.is_set():
            wake.clear()
            try:
                pause_s = step()
            except Exception:
                if end.is_set():
                    return  # the client was closed under it
                # A defect in one capture must not end all captures of this host.
                log.exception("thread capture-%s goes on after an unexpected error", name)
                pause_s = 1.0
            wake.wait(pause_s)
        if name == "talk":
            with contextlib.suppress(ServerUnreachable):  # what is not reported now, the lapse of the lease shows
                self._tell()

    def _carry(self) -> float:
        """Advance every recording; returns the seconds until the next time."""
        while self._leases:
            self._accept(self._leases.popleft())
        first: dict[str, InHand] = {}
        hands = self._in_hand()
        # What has begun comes before what waits, whatever the order in which an earlier agent's captures were found.
        for hand in sorted(hands, key=lambda hand: hand.current.phase is Phase.WAITING):
            if hand.in_process:
                first.setdefault(hand.manifest.run, hand)
        for hand in hands:
            manifest = hand.manifest
            with self._lock:
                pids = self._runs[manifest.run].pids if manifest.run in self._runs else ()
            ahead = first.get(manifest.run, hand)
            behind = None if ahead is hand else ahead.manifest.capture
            patient = ahead.current.phase is not Phase.LINGERING
            hand.recording.advance(now_ns(), pids=pids, behind=behind, patient=patient)
            self._advance_second(hand, pids, behind, patient)
            if hand.is_deliverable:
                self._deliver_now.set()
            elif hand.is_over:
                self._drop(hand)
        return STEP_S if first else 1.0

    def _advance_second(self, hand: InHand, pids: Sequence[int], behind: str | None, patient: bool) -> None:
        """Begin the second pass where there is to be one, and carry it on once the first has let the processes go."""
        manifest = hand.manifest
        if hand.second is None and manifest.passes > 1 and manifest.phase is Phase.WRITTEN:
            second = manifest.second_pass(now_ns())
            self._store.save(second)
            self._begin_second(hand, second)
        if hand.second is None or not manifest.settled:
            return
        if manifest.phase is not Phase.WRITTEN:
            hand.second.abandon("the capture has ended")
        hand.second.advance(now_ns(), pids=pids, behind=behind, patient=patient)

    def _drop(self, hand: InHand) -> None:
        with self._lock:
            self._hand.pop(hand.manifest.capture, None)
        self._store.remove(hand.manifest.capture)
        if len(self._ticks) > MAX_TICKS:
            self._ticks.clear()

    def _talk(self) -> float:
        """Report, renew, lease; returns the seconds until the next time."""
        try:
            self._tell()
            now_s = time.monotonic()
            if now_s >= self._lease_at_s and not self._stop.is_set():
                self._lease_at_s = now_s + LEASE_PERIOD_S
                self._ask_for_leases()
        except ServerUnreachable:
            return LEASE_PERIOD_S  # the agent's sender says so already
        except (ApiError, LookupError, TypeError) as error:
            log.warning("captures cannot be leased: %s", error)
            self._lease_at_s = time.monotonic() + 10 * LEASE_PERIOD_S
        return max(0.0, self._lease_at_s - time.monotonic())

    def _ask_for_leases(self) -> None:
        """For runs that the request which is open does not name."""
        with self._lock:
            runs = sorted(self._runs.keys() - self._waited_for)
        if runs:
            self._request_leases(LeaseRequest(host=self._host, runs=runs))

    def _wait(self) -> float:
        """Wait at the server for captures of the runs of now; returns the seconds until the next time."""
        with self._lock:
            runs = sorted(self._runs)
            self._waited_for = frozenset(runs)
        if not runs:
            return LEASE_PERIOD_S
        begun_s = time.monotonic()
        try:
            self._request_leases(LeaseRequest(host=self._host, runs=runs, wait_s=MAX_LEASE_WAIT_S))
        except ServerUnreachable:
            pass  # the agent's sender says so already
        except (ApiError, LookupError, TypeError) as error:
            log.warning("captures cannot be leased: %s", error)
            return max(10 * LEASE_PERIOD_S, error.wait_s if isinstance(error, ApiError) else 0.0)
        # A server that does not wait, or a capture that is given back at once, makes no more than one request a second.
        return max(0.0, begun_s + LEASE_PERIOD_S - time.monotonic())

    def _request_leases(self, request: LeaseRequest) -> None:
        answer = self._client.post("/captures/lease", request)
        self._stacks.take(answer, self._runs)
        for lease in answer["leases"]:
            if self._stop.is_set():
                why = CaptureReport(host=self._host, state=CaptureState.REQUESTED, reason="the agent was stopped")
                self._client.post(f"/captures/{lease['capture']}/report", why)
            else:
                self._lease(lease)

    def _lease(self, answer: Any) -> None:
        try:
            lease = lease_of(answer)
        except Invalid as error:
            log.warning("an invalid lease: %s", error)
            return
        with self._lock:
            known = lease.run in self._runs or lease.capture in self._hand
        if known:
            self._leases.append(lease)
            self._carry_now.set()
        else:
            gone = CaptureReport(host=self._host, state=CaptureState.REQUESTED, reason="the run ended on this host")
            self._client.post(f"/captures/{lease.capture}/report", gone)

    def _tell(self) -> None:
        """Send what is to be reported.

        :raises ServerUnreachable: the rest stays in the outboxes.
        """
        for hand in self._in_hand():
            while hand.outbox:
                self._tell_one(hand, hand.outbox[0])
                hand.outbox.popleft()
                self._carry_now.set()
            renewed = _RENEWED.get(hand.manifest.phase)
            if renewed is not None and time.monotonic() - hand.reported_s > RENEWAL_S:
                self._tell_one(hand, self._report(hand.manifest, renewed, hand.recording.waits_for))

    def _tell_one(self, hand: InHand, report: CaptureReport) -> None:
        key = hand.manifest.capture
        try:
            capture = self._client.post(f"/captures/{key}/report", dataclasses.asdict(report))
            refusal = f"it is {capture['state']}" if capture["state"] in ("failed", "expired") else None
        except ApiError as error:
            if error.http_status >= 500 or error.http_status in (401, 403, 429):
                raise ServerUnreachable(self._client.server, str(error)) from error
            refusal = str(error)
        hand.reported_s = time.monotonic()
        if refusal is not None and report.state != CaptureState.FAILED:
            hand.recording.abandon(f"the server does not want it any more: {refusal}")

    def _deliver(self) -> float:
        """Give each run's first delivery that is due a turn; returns the seconds until the next turns."""
        waits = [1.0]
        served: set[str] = set()
        for hand in self._in_hand():
            if not hand.is_deliverable:
                hand.delivery = None
            if not hand.is_deliverable or self._stop.is_set():
                continue
            pause_s = hand.deliver_after_s - time.monotonic()
            if pause_s > 0:
                waits.append(pause_s)
            elif hand.manifest.run not in served and self._deliver_turn(hand):
                served.add(hand.manifest.run)
        return 0.0 if served else min(waits)

    def _delivery(self, hand: InHand) -> Iterator[None]:
        """Pack and upload what a capture has now, step by step."""
        manifest, second = hand.manifest, hand.second
        hand.sending = hand.recording
        yield from pack_traces(manifest, self._store, max_bytes=self._max_bytes)
        if hand.outbox:
            return  # the server does not expect the files yet
        yield from send_traces(manifest, self._store, self._client, self._host)
        if second is not None and manifest.passes > 1:
            if second.manifest.phase is not Phase.WRITTEN:
                return
            hand.sending = second
            yield from pack_traces(second.manifest, self._store, max_bytes=self._max_bytes)
            yield from send_traces(second.manifest, self._store, self._client, self._host)
            second.manifest.enter(Phase.OVER, now_ns())
        if second is not None or manifest.passes == 1:
            manifest.enter(Phase.OVER, now_ns())
        self._carry_now.set()

    def _deliver_turn(self, hand: InHand) -> bool:
        """One step of a delivery; False when there is nothing more to do for it now."""
        manifest = hand.manifest
        if hand.delivery is None:
            hand.delivery = self._delivery(hand)
        try:
            next(hand.delivery)
            return True
        except StopIteration:
            pass
        except Undeliverable as error:
            hand.sending.abandon(str(error))
        except ServerUnreachable:
            self._put_off(hand)
        except ApiError as error:
            log.warning("capture %s: the server refuses a trace: %s", manifest.capture, error)
            hand.reported_s = -RENEWAL_S  # a report tells whether the capture still stands, or makes it so again
            self._talk_now.set()
            hand.refusals += error.http_status < 500
            if error.http_status == 413 or hand.refusals >= MAX_REFUSALS:
                hand.sending.abandon(f"the server refuses a trace: {error}")
            else:
                self._put_off(hand)
        hand.delivery = None
        return False

    def _put_off(self, hand: InHand) -> None:
        hand.deliver_after_s = time.monotonic() + BACK_OFF_S[min(hand.failures, len(BACK_OFF_S) - 1)]
        hand.failures += 1
