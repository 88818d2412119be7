"""How long steps take by the job's own counter, while nothing is recorded and while something is.

[Note: when a second pass is recorded]
Recording costs most where there are most calls: with stacks, a step of many small operators can take several times as
long, and then what the trace says about time is mostly about the recording. The control file tells both, without
reading a trace: the time between steps as the agent saw it before the capture, and within the recorded window. Where
the recorded step takes more than STRETCHED times the other, the same window is recorded again with nothing but
operators and kernels. Where the counter does not tell (no steps counted, an agent that has just begun, no whole step
in the window) each rank is recorded once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.kineto.manifest import Manifest
from tightship_collectors.kineto.rank_process import RankProcess
from tightship_platform.units import NS_PER_S, format_ns
from tightship_platform.wire import STRETCHED

MAX_LOOKS = 600
"""Looks at a process, one a second, that its typical step is taken from: the last ten minutes."""
MIN_STEPS = 10
"""With fewer steps outside of captures nothing is said."""
EXPORT_NS = 3 * NS_PER_S
"""Kineto still slows the job for a while after the file has appeared."""

UntracedStep = Callable[[int], int | None]
"""Process id → its typical step while nothing is recorded, ns; None: not known."""


class UntracedSteps:
    """Follows the step counters of all runs while nothing is recorded in them. Call `look` about once a second."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        """Run and process → steps, and the end of the newest, at the last look that counts."""
        self._paces: dict[tuple[str, int], deque[tuple[int, int]]] = {}
        """Run and process → (ns per step, steps) between two looks."""
        self._life: dict[tuple[str, int], tuple[int, int]] = {}
        """Run and process → (ns per step, steps) since its first step, recorded ones included."""
        self._quiet_ns: dict[str, int] = {}
        """Run → until when a recording still slows it."""

    def look(self, runs: Sequence[HostRun], recorded: Collection[str], now_ns: int) -> None:
        """:param recorded: runs in which something is, or is about to be, recorded."""
        seen = set()
        for run in runs:
            if run.run in recorded:
                self._quiet_ns[run.run] = now_ns + EXPORT_NS
            for view in run.ranks:
                key = run.run, view.pid
                seen.add(key)
                steps, first_ns, last_ns = view.steps, view.first_step_ns, view.last_step_ns
                if not steps or not last_ns:
                    continue
                if last_ns > self._quiet_ns.get(run.run, 0):
                    self._count(key, steps, last_ns)
                else:
                    self._last.pop(key, None)
                if steps > 1 and first_ns and first_ns < last_ns:
                    self._life[key] = (last_ns - first_ns) // (steps - 1), steps - 1
        for table in (self._last, self._paces, self._life):
            for key in table.keys() - seen:
                del table[key]
        for gone in self._quiet_ns.keys() - {run.run for run in runs}:
            del self._quiet_ns[gone]

    def typical_ns(self, run: str, pid: int) -> int | None:
        """The median step of the last ten minutes; where few steps were seen, as by an agent that has just begun, the
        mean of the job's life; None where that has fewer than MIN_STEPS."""
        paces = sorted(self._paces.get((run, pid), ()))
        total = sum(steps for _, steps in paces)
        if total < MIN_STEPS:
            mean_ns, made = self._life.get((run, pid), (0, 0))
            return mean_ns if made >= MIN_STEPS else None
        seen = 0
        for pace, steps in paces:
            seen += steps
            if 2 * seen >= total:
                return pace
        return None

    def _count(self, key: tuple[str, int], steps: int, last_ns: int) -> None:
        before = self._last.get(key)
        self._last[key] = steps, last_ns
        if before is not None and steps > before[0] and last_ns > before[1]:
            made = steps - before[0]
            self._paces.setdefault(key, deque(maxlen=MAX_LOOKS)).append(((last_ns - before[1]) // made, made))


class RecordedSteps:
    """The step counters within the window of one try of a capture."""

    def __init__(self) -> None:
        self._seen: dict[int, list[tuple[int, int]]] = {}
        """Process → steps, and the end of the newest, at the first look within the window and at the last."""

    def look(self, manifest: Manifest, process: RankProcess) -> None:
        """Note where the counter stands, if it stands at a step that was recorded."""
        file, rank, params = process.control(), process.rank, manifest.params
        if file is None or not file.steps or not file.last_step_ns:
            return
        seen = self._seen.setdefault(rank.pid, [])
        now = file.steps, file.last_step_ns
        if params.duration_ns is not None:
            within = rank.start_ns is not None and rank.start_ns <= now[1] <= rank.start_ns + params.duration_ns
        else:
            within = not seen or now[0] <= seen[0][0] + (params.iterations or 0)
        if within:
            seen[1:] = [now] if seen else []
            if not seen:
                seen.append(now)

    def mean_ns(self, pid: int) -> int | None:
        """The mean of the whole steps in the window; None where there was none."""
        seen = self._seen.get(pid, [])
        if len(seen) < 2 or seen[1][0] <= seen[0][0] or seen[1][1] <= seen[0][1]:
            return None
        return (seen[1][1] - seen[0][1]) // (seen[1][0] - seen[0][0])


def decide_passes(manifest: Manifest, recorded: RecordedSteps, untraced: UntracedStep) -> tuple[int, str | None]:
    """How often to record each rank, and why more than once. See [Note: when a second pass is recorded]."""
    params = manifest.params
    if params.passes < 2 or not (params.stacks or params.shapes or params.memory) or manifest.is_second:
        return 1, None
    worst: tuple[float, int, int] | None = None
    for rank in manifest.ranks:
        with_ns, without_ns = recorded.mean_ns(rank.pid), untraced(rank.pid)
        if with_ns and without_ns:
            worst = max(worst or (0.0, 0, 0), (with_ns / without_ns, with_ns, without_ns))
    if worst is None or worst[0] <= STRETCHED:
        return 1, None
    ratio, with_ns, without_ns = worst
    steps = f"{ratio:.1f} times as long ({format_ns(with_ns)}; {format_ns(without_ns)} while nothing is recorded)"
    return 2, f"recorded twice: recording made steps {steps}, so once more without stacks and shapes"
