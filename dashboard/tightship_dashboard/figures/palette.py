"""Colours of the pages; those of buckets and causes are the report's (`report/palette.py`)."""

from __future__ import annotations

from tightship_platform.vocabulary import ActionState, CaptureState, RunState

PAPER_LIGHT = "#fffefc"
PAPER_DARK = "#14161a"
MIN_CONTRAST = 3.0

RUN_COLOUR: dict[RunState, str] = {
    RunState.RUNNING: "#009E73",
    RunState.FINISHED: "#929292",
    RunState.FAILED: "#DC3E1A",
    RunState.LOST: "#7D6B00",
    RunState.CANCELLED: "#7555A7",
    RunState.TIMEOUT: "#CF7B00",
    RunState.OUT_OF_MEMORY: "#C562A2",
    RunState.UNKNOWN: "#929292",
}
ACTION_COLOUR: dict[str, str] = {
    ActionState.VERIFIED: "#009E73",
    ActionState.REFUTED: "#DC3E1A",
    ActionState.APPLIED: "#3A96D6",
    ActionState.WITHDRAWN: "#929292",
}
"""Of what was applied; of all else that was done, `UNKNOWN_STATE`."""
CHECK_COLOUR = {"ok": "#009E73", "note": "#CF7B00", "wrong": "#DC3E1A"}
BUSY, IDLE, LONG_IDLE, UNMEASURED = "#009E73", "#CF7B00", "#7D6B00", "#929292"
"""Of what samples measured of a device."""
UNKNOWN_STATE = "#929292"
"""Of a state that only a newer server knows."""

CAPTURE_STAGES: tuple[CaptureState, ...] = (
    CaptureState.REQUESTED,
    CaptureState.LEASED,
    CaptureState.ARMED,
    CaptureState.RECORDING,
    CaptureState.WRITTEN,
    CaptureState.UPLOADED,
    CaptureState.ANALYZED,
)
"""The way of a capture that goes well, in order."""

CAPTURE_MARK = "#DC3E1A"
SERIES = ("#3A96D6", "#CF7B00", "#009E73", "#C562A2", "#1869D4", "#DC3E1A", "#7555A7", "#7D6B00")
"""For lines that are not buckets: devices and ranks."""
CHOSEN = "#CF7B00"
"""The window that a plan takes, among all."""
LIMIT = "#DC3E1A"
"""What may be used at most."""


def run_colour(state: str) -> str:
    """The colour of a run's state."""
    return RUN_COLOUR[RunState(state)] if state in RunState.__members__.values() else UNKNOWN_STATE


def has_contrast(colour: str, paper: str) -> bool:
    """Whether a colour can be distinguished from the paper it lies on (WCAG relative luminance)."""
    low, high = sorted((_luminance(colour), _luminance(paper)))
    return (high + 0.05) / (low + 0.05) >= MIN_CONTRAST


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
