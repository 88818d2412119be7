"""Every bucket has a colour, a label and words; the colours can be distinguished from both papers."""

from __future__ import annotations

import itertools
import math

import pytest

from tightship_analyzers.facts.activity.cause import Cause
from tightship_analyzers.report.palette import BUCKET_COLOUR, CAUSE_LABEL, cause_bucket, cause_label
from tightship_dashboard.figures import palette
from tightship_dashboard.sentences import buckets
from tightship_platform.vocabulary import Bucket, CaptureState, RunState


@pytest.mark.parametrize("bucket", Bucket)
def test_every_bucket_is_described_and_readable_in_both_themes(bucket: Bucket) -> None:
    assert buckets.BUCKET_MEANING[bucket].endswith(".")
    assert buckets.BUCKET_CLAUSE[bucket]
    for paper in (palette.PAPER_LIGHT, palette.PAPER_DARK):
        assert palette.has_contrast(BUCKET_COLOUR[bucket], paper), paper


def test_no_two_buckets_share_a_colour() -> None:
    assert len(set(BUCKET_COLOUR.values())) == len(Bucket)


def test_every_cause_has_a_label_and_the_bucket_of_its_time() -> None:
    assert set(CAUSE_LABEL) == set(Cause)
    for cause in Cause:
        assert cause_label(cause.word) == CAUSE_LABEL[cause]
        assert cause_bucket(cause.word) is cause.bucket
    assert cause_label("of_tomorrow") == "of tomorrow"
    assert cause_bucket("of_tomorrow") is Bucket.UNEXPLAINED


Colour = tuple[float, float, float]


def linear(colour: str) -> Colour:
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (r, g, b))  # type: ignore[return-value]


def as_seen(colour: Colour, by: str) -> Colour:
    """Dichromats' view in linear RGB, after Viénot, Brettel and Mollon (1999)."""
    r, g, b = colour
    if by == "deuteranope":
        return (0.29275 * r + 0.70725 * g, 0.29275 * r + 0.70725 * g, -0.02234 * r + 0.02234 * g + b)
    if by == "protanope":
        return (0.11238 * r + 0.88762 * g, 0.11238 * r + 0.88762 * g, 0.00401 * r - 0.00401 * g + b)
    return colour


def lab(colour: Colour) -> Colour:
    """CIE L*a*b* of linear sRGB, white point D65."""
    r, g, b = colour
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (max(t, 0) ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return (116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz))


@pytest.mark.parametrize("by", ["everybody else", "deuteranope", "protanope"])
def test_any_two_buckets_are_distinguished(by: str) -> None:
    for one, other in itertools.combinations(Bucket, 2):
        pair = [lab(as_seen(linear(BUCKET_COLOUR[b]), by)) for b in (one, other)]
        assert math.dist(*pair) > 10, (one, other)


def test_contrast_is_the_wcag_ratio() -> None:
    assert palette.has_contrast("#000000", "#ffffff")
    assert not palette.has_contrast("#f0e442", "#ffffff")  # the yellow of the original eight
    assert palette.has_contrast("#949494", "#ffffff")  # 3.03:1
    assert not palette.has_contrast("#969696", "#ffffff")  # 2.96:1


def test_states_and_stages_are_complete() -> None:
    assert set(palette.RUN_COLOUR) == set(RunState)
    assert [*palette.CAPTURE_STAGES, CaptureState.FAILED, CaptureState.EXPIRED] == list(CaptureState)
