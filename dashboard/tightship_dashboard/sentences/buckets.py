"""Words for the buckets of an account, the same on every page."""

from __future__ import annotations

from tightship_platform.vocabulary import Bucket

BUCKET_MEANING: dict[Bucket, str] = {
    Bucket.PRODUCTIVE: "The device computed.",
    Bucket.INPUT: "The device waited for the next batch.",
    Bucket.CHECKPOINT: "The device waited while state was saved.",
    Bucket.HOST_SYNC: "The device ran dry because the host waited for a value from it.",
    Bucket.HOST: "The device waited for the host to issue work.",
    Bucket.QUEUED: "The device waited though its next work was queued.",
    Bucket.COMMUNICATION: "Communication that no computation hid.",
    Bucket.HELD_IDLE: "The run held the device and nothing at all happened.",
    Bucket.STARTUP: "From taking the device to the first step.",
    Bucket.SHUTDOWN: "From the last step to giving the device back.",
    Bucket.UNEXPLAINED: "No metric and no trace says what happened.",
}

BUCKET_CLAUSE: dict[Bucket, str] = {
    Bucket.PRODUCTIVE: "did work",
    Bucket.INPUT: "waited for input",
    Bucket.CHECKPOINT: "waited for checkpoints",
    Bucket.HOST_SYNC: "ran dry while the host waited for values",
    Bucket.HOST: "waited for the host",
    Bucket.QUEUED: "waited though work was queued",
    Bucket.COMMUNICATION: "went to communication that nothing hid",
    Bucket.HELD_IDLE: "were held idle",
    Bucket.STARTUP: "went to start-up",
    Bucket.SHUTDOWN: "went to shutdown",
    Bucket.UNEXPLAINED: "are unexplained",
}
"""How a sentence goes on after '37 % …'."""
