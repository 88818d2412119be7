"""One capture in a run's processes: from the lease until every rank's file is complete, or until it is given up.

[Note: who may end when]
A process that ends while Kineto records it aborts, so its exit guard holds it back while `capture_in_flight` is set in
its control file. The flag is set before a config can be handed out, and cleared when nothing can be recorded in the
process any more: its file is complete and Kineto calls itself idle, its config was withdrawn unread, its guard
cancelled, or it is dead. A capture that is given up while Kineto still records therefore lingers. A process that wants
to end before its config was handed out is let go at once. (The guard itself looks for the file, too, and so waits for
no agent; a profiler of the job's own waits for the flag.)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from tightship_collectors.jobs.control_file import rank_path, read_rank_file
from tightship_collectors.jobs.live_run import RankView
from tightship_collectors.jobs.ranks import read_ranks
from tightship_collectors.jobs.unarmed import UnarmedWatch
from tightship_collectors.jobs.user_folder import user_folder
from tightship_collectors.kineto import readiness
from tightship_collectors.kineto.arming import Arming
from tightship_collectors.kineto.disk_room import NoRoom, require_room
from tightship_collectors.kineto.manifest import Manifest, ManifestStore, Phase, RankTrace
from tightship_collectors.kineto.progress import LONGEST_EXPORT_NS, Progress
from tightship_collectors.kineto.rank_process import RankProcess
from tightship_collectors.kineto.readiness import OTHER_PROFILER, GiveUp
from tightship_collectors.kineto.service import KinetoService
from tightship_collectors.kineto.step_lengths import RecordedSteps, UntracedStep, decide_passes
from tightship_collectors.kineto.trace_file import BadTrace, remove_traces
from tightship_platform.errors import Invalid
from tightship_platform.units import NS_PER_MS, NS_PER_S
from tightship_platform.vocabulary import CaptureState

log = logging.getLogger(__name__)

MAX_TRIES = 3
"""Kineto refuses a request silently when it comes late; so often it is asked."""
GUARD_NS = 60 * NS_PER_S
"""How long an exit guard waits after the agent was last seen alive."""
GUARD_RENEWAL_NS = 10 * NS_PER_S
HAND_OUT_NS = 15 * NS_PER_S
"""A process that polls, even at Kineto's own pace of 5 s, has fetched its config by then."""
REFUSED_NS = 700 * NS_PER_MS
"""Kineto opens its file before the start; none so long after it means that it refused."""
START_BY_STEP_NS = 60 * NS_PER_S
"""Longest wait for the optimizer step at which iterations begin to count."""
SETTLE_NS = 3 * NS_PER_S
"""Kineto, which asks once a second, has said by then that it is idle again."""
UNARMED_LOOK_NS = 2 * NS_PER_S
"""Time between two looks for processes that cannot be recorded at all."""
LOOK_NS = 200 * NS_PER_MS
"""Time between two looks at processes that are not ready."""

Report = Callable[[CaptureState, str | None], None]


class Recording:
    """Carries one capture. Not thread-safe: one thread calls `advance`, about every 50 ms, until it is done."""

    def __init__(
        self,
        manifest: Manifest,
        *,
        service: KinetoService,
        store: ManifestStore,
        report: Report,
        ticks: dict[tuple[int, int], int],
        untraced_step: UntracedStep = lambda pid: None,
    ) -> None:
        """:param ticks: a past controller tick per (pid, start ticks), shared by all captures; see config."""
        self.manifest = manifest
        self.waits_for: str | None = None
        self._service = service
        self._store = store
        self._report = report
        self._ticks = ticks
        self._arming: Arming | None = None
        self._progress = Progress()
        self._untraced_step = untraced_step
        self._steps = RecordedSteps()
        self._renewed_ns = 0
        self._not_before_ns = 0
        self._look_again_ns = 0
        self._abandoned: str | None = None
        self._unarmed = UnarmedWatch()
        self._unarmed_at_ns = 0

    def resume(self, now_ns: int) -> None:
        """Take over from an agent that was killed: whether it had handed out the configs is not known."""
        manifest = self.manifest
        if manifest.phase is Phase.ARMED:
            for rank in manifest.ranks:
                rank.handed_ns = rank.handed_ns or now_ns
                if manifest.params.duration_ns is not None:
                    rank.start_ns = rank.start_ns or now_ns + 4 * NS_PER_S
        if manifest.phase is Phase.LINGERING:
            self._report(CaptureState.FAILED, manifest.reason)
        self._progress.restart(now_ns)

    def advance(self, now_ns: int, *, pids: Sequence[int], behind: str | None = None, patient: bool = True) -> None:
        """Do what can be done now.

        :param pids: processes of the run that the agent still sees.
        :param behind: the capture of the same run that comes first.
        :param patient: wait for that one as long as it takes; false when it has failed and merely lingers.
        """
        manifest = self.manifest
        try:
            if self._abandoned is not None:
                raise GiveUp(self._abandoned)
            if manifest.phase is Phase.WAITING:
                self._wait(now_ns, pids, behind, patient)
            elif manifest.phase is Phase.ARMED:
                self._watch_start(now_ns)
            elif manifest.phase is Phase.RECORDING:
                self._watch_files(now_ns)
            elif manifest.phase is Phase.LINGERING:
                self._linger(now_ns)
        except GiveUp as given_up:
            self._give_up(str(given_up), now_ns)
        except OSError as error:
            self._give_up(f"the agent cannot keep its records: {error}", now_ns)
        self._settle(now_ns)
        if now_ns - self._renewed_ns > GUARD_RENEWAL_NS:
            self._renewed_ns = now_ns
            for process in self._processes():
                if not process.rank.complete:
                    process.extend_guard(now_ns + GUARD_NS)

    def abandon(self, reason: str) -> None:
        """Have the next `advance` give the capture up. May be called from any thread."""
        self._abandoned = reason

    def _give_up(self, reason: str, now_ns: int) -> None:
        """Fail the capture; linger while Kineto may still record."""
        manifest = self.manifest
        self._abandoned = None
        if manifest.phase in (Phase.LINGERING, Phase.OVER):
            return
        log.info("capture %s of run %s: %s", manifest.capture, manifest.run, reason)
        manifest.reason = reason
        self._withdraw(now_ns)
        manifest.enter(Phase.LINGERING, now_ns)
        try:
            self._store.save(manifest)
        except OSError as error:
            log.warning("capture %s: its manifest cannot be saved: %s", manifest.capture, error)
        self._report(CaptureState.FAILED, reason)
        self._linger(now_ns)

    def release(self, now_ns: int) -> bool:
        """The agent stops: give up what nothing was handed out for. False if the next agent has to carry on."""
        manifest = self.manifest
        if manifest.phase not in (Phase.WAITING, Phase.ARMED) or self._withdraw(now_ns):
            return False
        manifest.enter(Phase.OVER, now_ns)
        return True

    def _withdraw(self, now_ns: int) -> bool:
        """Take back the configs that were not handed out; True if there is a rank that has one."""
        handed = False
        for process in self._processes():
            if self._service.disarm(self.manifest.run, process.rank.pid) and process.rank.handed_ns is None:
                self._release(process)
            else:
                process.rank.handed_ns = process.rank.handed_ns or now_ns
                handed = True
        return handed

    def _wait(self, now_ns: int, pids: Sequence[int], behind: str | None, patient: bool) -> None:
        manifest = self.manifest
        if now_ns < self._look_again_ns:
            return
        self._look_again_ns = now_ns + LOOK_NS
        views = read_ranks(manifest.traces_dir.parent, uid=manifest.uid)
        if not views and not pids:
            raise GiveUp("run ended before it could be recorded")
        if manifest.is_second and any(process.is_ending() for process in self._processes()):
            raise GiveUp("run ended before the second pass")
        if behind is not None and patient:
            manifest.since_ns = now_ns
        ranks, obstacle = readiness.judge(manifest, views, self._service, now_ns, behind)
        if obstacle is not None and not ranks and now_ns > self._unarmed_at_ns:
            self._unarmed_at_ns = now_ns + UNARMED_LOOK_NS
            unarmed = self._unarmed.look(pids, {view.pid for view in views})
            if unarmed is not None:
                raise GiveUp(f"{unarmed.why}; --insist does not help")
        if obstacle is None and now_ns < self._not_before_ns:
            return
        if obstacle is None:
            self._arm(ranks, now_ns)
        elif now_ns - manifest.since_ns > readiness.PATIENCE_NS:
            raise GiveUp(f"gave up after {readiness.PATIENCE_NS // NS_PER_S} s: {obstacle}")
        elif obstacle != self.waits_for:
            self.waits_for = obstacle
            self._report(CaptureState.LEASED, obstacle)

    def _arm(self, views: Sequence[RankView], now_ns: int) -> None:
        manifest = self.manifest
        self._check_disk()
        if manifest.is_second and {(v.rank, v.pid) for v in views} != {(r.rank, r.pid) for r in manifest.ranks}:
            raise GiveUp("the run's processes have changed since the first pass")
        manifest.tries += 1
        manifest.ranks = []
        self._progress, self._steps = Progress(), RecordedSteps()
        for view in views:
            self._service.forget(manifest.run, view.pid)
            file = read_rank_file(rank_path(manifest.traces_dir.parent, view.pid), uid=manifest.uid)
            if file is None:
                raise GiveUp(f"run ended: rank {view.rank} (process {view.pid}) is gone")
            manifest.ranks.append(RankTrace(rank=view.rank, pid=view.pid, start_ticks=file.start_ticks))
        try:
            self._arming = Arming.plan(manifest, views, self._service, self._ticks, now_ns)
            iterations = self._arming.warmup + manifest.params.iterations if manifest.params.iterations else 0
            for process in self._processes():
                if not process.arm_guard(now_ns + GUARD_NS, iterations=iterations):
                    raise GiveUp(f"run ended: {process.name} is ending")
        except Invalid as error:
            raise GiveUp(str(error)) from error
        self._renewed_ns = now_ns
        manifest.enter(Phase.ARMED, now_ns)
        self._store.save(manifest)
        self._arming.lay_out(self._service)
        self.waits_for = None
        self._report(CaptureState.ARMED, None)

    def _check_disk(self) -> None:
        run_dir = self.manifest.traces_dir.parent
        try:
            with user_folder(run_dir, self.manifest.uid) as handle:
                require_room(handle, run_dir)
            require_room(self._store.root, self._store.root)
        except NoRoom as error:
            raise GiveUp(str(error.strerror)) from error

    def _watch_start(self, now_ns: int) -> None:
        manifest = self.manifest
        self._note_hand_outs()
        if self._arming is not None and self._arming.missed:
            self._try_again("a process asked for its config too late for the common start", now_ns)
            return
        opened = 0
        for process in self._processes():
            rank = process.rank
            if rank.handed_ns is None:
                if process.is_ending() and self._service.disarm(manifest.run, rank.pid):
                    raise GiveUp(f"run ended before {process.name} was recorded")
                if now_ns - manifest.since_ns > HAND_OUT_NS:
                    raise GiveUp(f"{process.name} stopped asking for captures")
                continue
            alive = process.may_record()
            if self._progress.has_opened(process, now_ns):
                opened += 1
                continue
            if not alive:
                raise GiveUp(f"run ended: {process.name} ended before its trace began")
            if rank.start_ns is None and now_ns - rank.handed_ns > START_BY_STEP_NS:
                raise GiveUp(f"{process.name} made no optimizer step to start at in {START_BY_STEP_NS // NS_PER_S} s")
            if rank.start_ns is not None and now_ns > rank.start_ns + REFUSED_NS:
                self._try_again(f"Kineto refused to start in {process.name}", now_ns, likely=OTHER_PROFILER)
                return
        if opened == len(manifest.ranks) and now_ns >= manifest.latest_start_ns:
            manifest.enter(Phase.RECORDING, now_ns)
            self._progress.restart(now_ns)
            self._store.save(manifest)
            self._report(CaptureState.RECORDING, None)

    def _watch_files(self, now_ns: int) -> None:
        manifest = self.manifest
        for process in self._processes():
            rank = process.rank
            if rank.complete:
                continue
            alive = process.may_record()
            self._steps.look(manifest, process)
            client = self._service.client(manifest.run, rank.pid)
            # The file comes last: if it arrived after the looks above, nobody is called dead or idle for it.
            if process.has_file():
                self._complete(process, now_ns)
            elif not alive:
                raise GiveUp(f"run ended: {process.name} ended before its trace was complete")
            elif self._progress.was_dropped(process, client, now_ns):
                self._try_again(f"Kineto dropped the trace of {process.name}", now_ns, likely=OTHER_PROFILER)
                return
        if all(rank.complete for rank in manifest.ranks):
            manifest.passes, manifest.passes_reason = decide_passes(manifest, self._steps, self._untraced_step)
            manifest.enter(Phase.WRITTEN, now_ns)
            self._store.save(manifest)
            self._report(CaptureState.WRITTEN, None)
        else:
            self._progress.check(manifest, self._processes(), now_ns)

    def _complete(self, process: RankProcess, now_ns: int) -> None:
        """Take a rank's file as complete."""
        try:
            os.close(process.open_trace())
        except BadTrace as error:
            raise GiveUp(str(error)) from error
        rank, duration_ns = process.rank, self.manifest.params.duration_ns
        rank.complete, rank.complete_ns = True, now_ns
        if rank.start_ns is not None and duration_ns is not None:
            self._ticks[rank.pid, rank.start_ticks] = rank.start_ns + duration_ns

    def _try_again(self, why: str, now_ns: int, *, likely: str | None = None) -> None:
        """:param likely: the cause, where it happens every time."""
        manifest = self.manifest
        if manifest.tries >= MAX_TRIES:
            raise GiveUp(f"{why}, {manifest.tries} times" + (f"; {likely}" if likely else ""))
        log.info("capture %s of run %s: %s; trying again", manifest.capture, manifest.run, why)
        for rank in manifest.ranks:
            self._service.disarm(manifest.run, rank.pid)
            self._ticks.pop((rank.pid, rank.start_ticks), None)  # it may be what was wrong
        self._note_hand_outs()
        self._not_before_ns = manifest.latest_start_ns + NS_PER_S
        manifest.enter(Phase.WAITING, now_ns)
        self._store.save(manifest)

    def _linger(self, now_ns: int) -> None:
        """Let each process go as soon as nothing is recorded in it any more."""
        manifest = self.manifest
        by_time = manifest.params.duration_ns is not None
        held = False
        for process in self._processes():
            rank = process.rank
            if rank.handed_ns is None or rank.complete:
                continue
            alive = process.may_record()
            client = self._service.client(manifest.run, rank.pid)
            idle = client is not None and client.idle and client.poll_ns > max(manifest.since_ns, rank.start_ns or 0)
            # A request for iterations that has not begun stays pending while Kineto calls itself idle.
            settled = idle and (by_time or self._progress.has_opened(process, now_ns))
            overdue = by_time and now_ns - manifest.since_ns > LONGEST_EXPORT_NS
            if not alive or settled or overdue or process.has_file():
                rank.complete, rank.complete_ns = True, now_ns
            else:
                held = True
        self._settle(now_ns)
        if not held and manifest.settled:
            remove_traces(manifest.traces_dir, manifest.uid, manifest.prefix)
            manifest.enter(Phase.OVER, now_ns)

    def _settle(self, now_ns: int) -> None:
        """Let the processes go in which Kineto has come to rest."""
        for process in self._processes():
            rank = process.rank
            if not rank.complete or rank.released:
                continue
            client = self._service.client(self.manifest.run, rank.pid)
            idle = client is not None and client.idle and client.poll_ns > rank.complete_ns
            if idle or now_ns - rank.complete_ns > SETTLE_NS or not process.may_record():
                self._release(process)

    def _release(self, process: RankProcess) -> None:
        process.release_guard()
        process.rank.released = True

    def _note_hand_outs(self) -> None:
        for process in self._processes():
            rank = process.rank
            if rank.handed_ns is not None:
                continue
            rank.handed_ns = self._service.handed_ns(self.manifest.run, rank.pid)
            if rank.handed_ns is not None:
                rank.start_ns = self._arming.starts.get(rank.pid) if self._arming else None
                start_ns = rank.start_ns or 0
                process.tell_window(start_ns, start_ns and start_ns + (self.manifest.params.duration_ns or 0))
                self._store.save(self.manifest)

    def _processes(self) -> list[RankProcess]:
        return [RankProcess(self.manifest, rank) for rank in self.manifest.ranks]
