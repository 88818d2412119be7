"""The configs of one try: who starts when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tightship_collectors.jobs.live_run import RankView
from tightship_collectors.kineto.config import TICK_NS, choose_common_start_ns, choose_start_ns, render
from tightship_collectors.kineto.manifest import Manifest
from tightship_collectors.kineto.service import Compose, KinetoService
from tightship_platform.units import NS_PER_S

STEPS_AHEAD_S = 3.0
"""Several ranks that record iterations begin at a step that lies this far ahead, so that all have their config."""
_ACCELERATORS = ("/dev/nvidia", "/dev/kfd")


class Arming:
    """A config for each rank, made at the moment its process asks."""

    def __init__(self, manifest: Manifest, warmup: int) -> None:
        self.starts: dict[int, int] = {}
        """UTC start that was sent to each process; none where iterations are counted."""
        self.missed = False
        """A process asked too late to begin with the others; the try is void."""
        self.warmup = warmup
        """Seconds, or iterations, before the window in which nothing is kept."""
        self._manifest = manifest
        self._composers: dict[int, Compose] = {}

    @classmethod
    def plan(
        cls,
        manifest: Manifest,
        views: Sequence[RankView],
        service: KinetoService,
        ticks: Mapping[tuple[int, int], int],
        now_ns: int,
    ) -> Arming:
        """Decide the starts; `lay_out` puts the plan into force.

        :raises Invalid: the run's folder has a name that Kineto's config cannot hold.
        """
        arming = cls(manifest, warmup=int(any(uses_accelerator(view.pid) for view in views)))
        known = {rank.pid: ticks.get((rank.pid, rank.start_ticks)) for rank in manifest.ranks}
        if manifest.params.iterations is not None:
            arming._by_iterations(_common_step(views) if len(views) > 1 else 0)
        elif len(known) == 1:
            for pid, tick_ns in known.items():
                arming._at_once(pid, tick_ns)
        else:
            arming._together(known, service, now_ns)
        return arming

    def lay_out(self, service: KinetoService) -> None:
        """Hand the configs to the service."""
        for pid, compose in self._composers.items():
            service.arm(self._manifest.run, pid, compose)

    def _render(self, start_ns: int) -> bytes:
        manifest = self._manifest
        return render(
            manifest.params,
            trace=manifest.asked_path,
            trace_id=manifest.trace_id,
            start_ns=start_ns,
            warmup=self.warmup,
        ).encode()

    def _at_once(self, pid: int, tick_ns: int | None) -> None:
        tries = self._manifest.tries
        self._render(1)  # what is wrong with it comes to light here, and not in the service's thread

        def compose(now_ns: int) -> bytes:
            self.starts[pid] = choose_start_ns(now_ns, tick_ns, self.warmup * NS_PER_S, tries)
            return self._render(self.starts[pid])

        self._composers[pid] = compose

    def _together(self, known: Mapping[int, int | None], service: KinetoService, now_ns: int) -> None:
        polls = {pid: service.client(self._manifest.run, pid) for pid in known}
        phases = [
            tick or (client.poll_ns if client else now_ns)
            for (pid, tick), client in zip(known.items(), polls.values(), strict=True)
        ]
        slowest_ns = max((client.period_ns or 0 for client in polls.values() if client), default=0)
        beyond_ns = max(0, slowest_ns - TICK_NS)
        warmup_ns = self.warmup * NS_PER_S
        start_ns = choose_common_start_ns(now_ns + beyond_ns, phases, warmup_ns)
        config = self._render(start_ns)

        def composer(pid: int) -> Compose:
            def compose(asked_ns: int) -> bytes | None:
                if start_ns - warmup_ns - asked_ns < TICK_NS:
                    self.missed = True
                    return None
                self.starts[pid] = start_ns
                return config

            return compose

        for pid in known:
            self._composers[pid] = composer(pid)

    def _by_iterations(self, first: int) -> None:
        manifest = self._manifest
        config = render(
            manifest.params,
            trace=manifest.asked_path,
            trace_id=manifest.trace_id,
            start_iteration=first,
            warmup=self.warmup,
        ).encode()
        for rank in manifest.ranks:
            self._composers[rank.pid] = lambda _: config


def _common_step(views: Sequence[RankView]) -> int:
    """A step number that every rank reaches only after it has its config. Kineto counts from 0, we count from 1."""
    newest = max(view.steps or 0 for view in views)
    paces = [
        (view.steps - 1) * NS_PER_S / (view.last_step_ns - view.first_step_ns)
        for view in views
        if view.steps and view.first_step_ns and view.last_step_ns and view.last_step_ns > view.first_step_ns
    ]
    return newest + math.ceil(STEPS_AHEAD_S * max(paces, default=1.0))


def uses_accelerator(pid: int) -> bool:
    """The process has an NVIDIA or AMD device open: its tracer needs a warm-up before the first kernel counts."""
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            if str(descriptor.readlink()).startswith(_ACCELERATORS):
                return True
        except OSError:
            continue  # closed meanwhile
    return False
