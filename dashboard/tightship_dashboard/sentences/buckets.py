"""Words for the buckets of an account, the same on every page."""

from __future__ import annotations

from tightship_platform.vocabulary import Bucket

BUCKET_MEANING: dict[Bucket, str] = {
    Bucket.PRODUCTIVE: "The device computed.",
    Bucket.INPUT: "The device waited for the next batch.",
    Bucket.CHECKPOINT: "The device waited while state was saved.",
    Bucket.HOST_SYNC: "The device was idle because the host was blocked in a synchronization.",
    Bucket.HOST: "The device waited for the host to launch work.",
    Bucket.QUEUED: "The device was idle between kernels that were already queued.",
    Bucket.COMMUNICATION: "Exposed (non-overlapped) communication.",
    Bucket.HELD_IDLE: "The run held the device and nothing happened.",
    Bucket.STARTUP: "From the allocation of the device to the first step, or without steps to its first activity.",
    Bucket.SHUTDOWN: "From the last step to the release of the device.",
    Bucket.NEVER_STARTED: "The run held the device, and never made a step nor had a device active.",
    Bucket.LOST: "What a failed run did after its last checkpoint that a trace shows: at most so much is lost.",
    Bucket.UNALLOCATED: "No run held the device.",
    Bucket.UNEXPLAINED: "Neither a metric nor a trace shows what happened.",
}

BUCKET_CLAUSE: dict[Bucket, str] = {
    Bucket.PRODUCTIVE: "were productive",
    Bucket.INPUT: "waited for input",
    Bucket.CHECKPOINT: "waited for checkpoints",
    Bucket.HOST_SYNC: "were idle while the host was blocked in synchronizations",
    Bucket.HOST: "waited for the host",
    Bucket.QUEUED: "idled between queued kernels",
    Bucket.COMMUNICATION: "went to exposed communication",
    Bucket.HELD_IDLE: "were held idle",
    Bucket.STARTUP: "went to start-up",
    Bucket.SHUTDOWN: "went to shutdown",
    Bucket.NEVER_STARTED: "were held by runs that never started",
    Bucket.LOST: "are the lost work of failed runs",
    Bucket.UNALLOCATED: "were held by no run",
    Bucket.UNEXPLAINED: "are unexplained",
}
"""How a sentence goes on after '37 % …'."""
