"""Colours and labels of buckets and causes, the same in terminal, HTML report and dashboard, in both themes.

The hues are those of Okabe and Ito (jfly.uni-koeln.de/color), shifted where needed: each keeps a contrast of at least
3:1 (WCAG 1.4.11) against the paper of the light theme and of the dark one, so no colour changes with the theme, and any
two stay apart for people who see red and green alike. A label stands beside every colour all the same.
"""

from __future__ import annotations

from tightship_analyzers.facts.activity.cause import Cause
from tightship_platform.results.run_account import BUCKET_LABEL
from tightship_platform.vocabulary import Bucket

BUCKET_COLOUR: dict[Bucket, str] = {
    Bucket.PRODUCTIVE: "#009E73",
    Bucket.INPUT: "#CF7B00",
    Bucket.CHECKPOINT: "#3A96D6",
    Bucket.HOST_SYNC: "#DC3E1A",
    Bucket.HOST: "#C562A2",
    Bucket.QUEUED: "#009CB4",
    Bucket.COMMUNICATION: "#1869D4",
    Bucket.HELD_IDLE: "#7D6B00",
    Bucket.STARTUP: "#7555A7",
    Bucket.SHUTDOWN: "#4F7378",
    Bucket.NEVER_STARTED: "#787854",
    Bucket.LOST: "#C04848",
    Bucket.UNALLOCATED: "#8484F0",
    Bucket.UNEXPLAINED: "#929292",
}

CAUSE_LABEL: dict[Cause, str] = {
    Cause.INPUT: "waiting for the next batch",
    Cause.CHECKPOINT: "saving state (checkpoint)",
    Cause.HOST_SYNC: "host blocked in a synchronization",
    Cause.HOST_DISPATCH: "waiting for the host to launch work",
    Cause.SYNC_COPY: "host blocked in a copy",
    Cause.ALLOCATOR: "host allocating or freeing device memory",
    Cause.COMPILATION: "host compiling or loading code",
    Cause.GARBAGE_COLLECTION: "host collecting garbage",
    Cause.COLLECTIVE_WAIT: "waiting for a collective",
    Cause.DEVICE_DEPENDENCY: "between queued kernels (dependency or launch latency)",
    Cause.UNRECORDED: "device work that the file does not hold",
    Cause.PROFILING: "host recording Python stacks (profiling overhead)",
    Cause.WINDOW_EDGE: "before the first or after the last kernel",
    Cause.UNEXPLAINED: "cause not recorded",
}
"""Why a device is idle."""

PART_COLOUR: dict[str, str] = {
    "host": BUCKET_COLOUR[Bucket.HOST],
    "kernel": BUCKET_COLOUR[Bucket.PRODUCTIVE],
    "copy": BUCKET_COLOUR[Bucket.CHECKPOINT],
    "collective": BUCKET_COLOUR[Bucket.COMMUNICATION],
    "launch_latency": BUCKET_COLOUR[Bucket.INPUT],
    "stream_gap": BUCKET_COLOUR[Bucket.QUEUED],
    "sync": BUCKET_COLOUR[Bucket.HOST_SYNC],
    "unexplained": BUCKET_COLOUR[Bucket.UNEXPLAINED],
}
"""Parts of a critical path."""

LANE_COLOUR: dict[str, str] = {
    "device": BUCKET_COLOUR[Bucket.PRODUCTIVE],
    "host": BUCKET_COLOUR[Bucket.HOST],
    "frames": BUCKET_COLOUR[Bucket.CHECKPOINT],
}
"""Lanes of a timeline; their text is dark in both themes (contrast above 4.5:1)."""


def bucket_label(bucket: str) -> str:
    """The label of a bucket; of one that only a newer release knows its own word."""
    return BUCKET_LABEL[Bucket(bucket)] if bucket in Bucket.__members__.values() else bucket.replace("_", " ")


def bucket_colour(bucket: str) -> str:
    """The colour of a bucket; of one that only a newer release knows the colour of what is unexplained."""
    known = bucket in Bucket.__members__.values()
    return BUCKET_COLOUR[Bucket(bucket) if known else Bucket.UNEXPLAINED]


def cause_label(cause: str) -> str:
    """A cause in words. Evidence of the rules may also name a bucket; one that only a newer release knows stays."""
    word = cause.replace(" ", "_")
    known = Cause.__members__.get("HOST_DISPATCH" if word == Bucket.HOST else word.upper())
    return cause.replace("_", " ") if known is None else CAUSE_LABEL[known]


def cause_bucket(cause: str) -> Bucket:
    """The bucket that time with this cause belongs to."""
    known = Cause.__members__.get(cause.upper())
    return Bucket.UNEXPLAINED if known is None else known.bucket
