"""One rank's process while it is recorded: is it alive, what has Kineto written, what does its exit guard receive."""

from __future__ import annotations

from tightship_collectors.jobs.control_file import (
    RankFile,
    arm_capture,
    clear_capture,
    extend_capture,
    rank_path,
    read_rank_file,
    set_capture_window,
)
from tightship_collectors.jobs.ranks import is_alive
from tightship_collectors.kineto import trace_file
from tightship_collectors.kineto.config import final_path
from tightship_collectors.kineto.manifest import Manifest, RankTrace

NOT_BEGUN_NS = 2**62
"""A time that never comes."""


class RankProcess:
    """A rank of a manifest, at the manifest's present try."""

    def __init__(self, manifest: Manifest, rank: RankTrace) -> None:
        self.rank = rank
        self.name = f"rank {rank.rank} (process {rank.pid})"
        self._uid = manifest.uid
        self._trace_id = manifest.trace_id
        self._folder = manifest.traces_dir
        self._final = final_path(manifest.asked_path, rank.pid)
        self._control = rank_path(manifest.traces_dir.parent, rank.pid)

    def is_alive(self) -> bool:
        """The very process of the manifest still runs."""
        return is_alive(self.rank.pid, self.rank.start_ticks, self._uid)

    def is_ending(self) -> bool:
        """It has entered its exit guard, or is gone."""
        file = self.control()
        return file is None or file.exiting or not self.is_alive()

    def control(self) -> RankFile | None:
        """Its control file; None when that is gone."""
        return read_rank_file(self._control, uid=self._uid)

    def may_record(self) -> bool:
        """It lives, and its exit guard has not cancelled the recording."""
        file = self.control()
        return self.is_alive() and (file is None or not file.cancelled)

    def arm_guard(self, deadline_ns: int, *, iterations: int) -> bool:
        """Tell the exit guard that a capture begins; False when the process is ending and must not be armed.

        Until `tell_window` the window counts as far ahead: a process that ends before it has its config need not wait.

        :param iterations: warm-up plus recorded iterations; 0 when the window is one of time.
        """
        return arm_capture(
            self._control,
            uid=self._uid,
            trace=self._final,
            deadline_ns=deadline_ns,
            start_ns=NOT_BEGUN_NS,
            end_ns=NOT_BEGUN_NS,
            iterations=iterations,
        )

    def tell_window(self, start_ns: int, end_ns: int) -> None:
        """Tell the exit guard when the recording opens and closes; 0: not known."""
        set_capture_window(self._control, uid=self._uid, start_ns=start_ns, end_ns=end_ns)

    def extend_guard(self, deadline_ns: int) -> None:
        """Ask the exit guard to wait until then."""
        extend_capture(self._control, uid=self._uid, deadline_ns=deadline_ns)

    def release_guard(self) -> None:
        """Nothing is recorded in the process any more: it may end."""
        clear_capture(self._control, uid=self._uid)

    def open_bytes(self) -> int | None:
        """Size of its trace, finished or not; None while Kineto has not opened it."""
        for name in (self._final.name + ".tmp", self._final.name):
            size = trace_file.trace_size(self._folder, name, self._uid)
            if size is not None:
                return size
        return None

    def has_file(self) -> bool:
        """Kineto has given the trace its final name."""
        return trace_file.trace_size(self._folder, self._final.name, self._uid) is not None

    def open_trace(self) -> int:
        """A descriptor of the complete trace.

        :raises BadTrace: the file is not the trace that was asked for.
        """
        return trace_file.open_trace(self._folder, self._final.name, self._uid, self._trace_id)
