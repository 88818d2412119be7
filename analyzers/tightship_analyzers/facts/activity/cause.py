"""The closed list of causes: why a device idled, or why communication was not hidden."""

from __future__ import annotations

from enum import IntEnum

from tightship_platform.vocabulary import Bucket


class Cause(IntEnum):
    """One of these for every nanosecond. Those of the host come in order of precedence: the first that holds counts.

    [Note: precedence] First what is no part of the program. Then what can strike anywhere (a collection of garbage
    inside the loader is garbage). Then the ranges that enclose others and whose fix removes all that is inside (a save
    copies and synchronizes; a compiler benchmarks, allocates and synchronizes). Then single calls that hold the host.
    What is left is the host at work.
    """

    PROFILING = 0
    """Recording Python stacks took that long; without it the host would have launched the next work in time."""
    GARBAGE_COLLECTION = 1
    """Python collected garbage on the thread that issues the work."""
    CHECKPOINT = 2
    """The host was saving state."""
    INPUT = 3
    """The host waited for, or made, the next batch."""
    COMPILATION = 4
    """The host traced, compiled, autotuned or loaded code."""
    COLLECTIVE_WAIT = 5
    """The host blocked in a collective it (Gloo, a barrier, a store). Of exposed communication: the next
    computation was queued already and had to wait for the collective."""
    HOST_SYNC = 6
    """The host read a scalar, or waited for the device in another way; or the time that it lost by doing so."""
    SYNC_COPY = 7
    """The host was blocked in a synchronous copy or memset; or the time lost by it."""
    ALLOCATOR = 8
    """The host asked the driver for memory or gave it back; or the time lost by it."""
    DEVICE_DEPENDENCY = 9
    """The next work was queued already: the device started it late, or it waited for another stream or device."""
    UNRECORDED = 10
    """The next work was queued already, and the device did not begin it for more than a millisecond: it did what the
    file does not hold."""
    WINDOW_EDGE = 11
    """Before the first or after the last work of the device in the recording, or while it worked for a step that is
    not looked at; none of the causes above."""
    HOST_DISPATCH = 12
    """Launch-bound: the host had not issued the next work yet and was running operators, calls or Python."""
    UNEXPLAINED = 13
    """The trace does not say what the host did."""

    @property
    def word(self) -> str:
        """As results print it: `host_sync`."""
        return self.name.lower()

    @property
    def bucket(self) -> Bucket:
        """The bucket of the run's account that this time belongs to."""
        return _BUCKETS.get(self, Bucket.HOST)


_BUCKETS = {
    Cause.PROFILING: Bucket.UNEXPLAINED,
    Cause.CHECKPOINT: Bucket.CHECKPOINT,
    Cause.INPUT: Bucket.INPUT,
    Cause.COLLECTIVE_WAIT: Bucket.COMMUNICATION,
    Cause.HOST_SYNC: Bucket.HOST_SYNC,
    Cause.SYNC_COPY: Bucket.HOST_SYNC,
    Cause.DEVICE_DEPENDENCY: Bucket.QUEUED,
    Cause.UNRECORDED: Bucket.UNEXPLAINED,
    Cause.WINDOW_EDGE: Bucket.UNEXPLAINED,
    Cause.UNEXPLAINED: Bucket.UNEXPLAINED,
}
"""All others are the host's."""
