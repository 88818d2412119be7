"""Numbers, times and names as people read them."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from made_records import make

from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.host import Device
from tightship_platform.units import NS_PER_MS, NS_PER_S

BERLIN = ZoneInfo("Europe/Berlin")
H, MIN = 3600 * NS_PER_S, 60 * NS_PER_S


def shown(text: str) -> str:
    """With ordinary spaces."""
    return text.replace(fmt.NBSP, " ")


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (2492 * H, "2,492 h"),
        (100 * H, "100 h"),
        (int(99.96 * H), "100 h"),  # not '100.0 h'
        (int(61.44 * H), "61.4 h"),
        (90 * MIN, "1.50 h"),
        (59 * MIN, "59.0 min"),
        (int(41.2 * NS_PER_MS), "41.2 ms"),
        (999, "999 ns"),
        (-5 * H, "-5.00 h"),
    ],
)
def test_durations_have_a_unit_and_three_figures(value_ns: int | None, text: str) -> None:
    assert shown(fmt.duration(value_ns)) == text


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (None, "–"),
        (12 * NS_PER_S, "12.0 s"),
        (200 * NS_PER_S, "3 min 20 s"),
        (134 * MIN, "2 h 14 min"),
        (51 * H, "2 d 3 h"),
    ],
)
def test_clock(value_ns: int | None, text: str) -> None:
    assert shown(fmt.clock(value_ns)) == text


def test_device_time_names_what_it_counts() -> None:
    assert fmt.device_time(2492 * H) == "2,492 device-hours"
    assert fmt.device_time(41 * NS_PER_S) == "41.0 device-seconds"
    assert fmt.device_time(500 * NS_PER_MS) == "0.50 device-seconds"


def test_an_estimate_carries_its_bounds_in_the_same_unit() -> None:
    assert shown(fmt.span(310 * H, 280 * H, 330 * H)) == "310 h (280–330)"
    assert shown(fmt.span(61 * MIN, 50 * MIN, 70 * MIN)) == "1.02 h (0.83–1.17)"
    assert shown(fmt.span(5 * H, None, None)) == "5.00 h"
    assert shown(fmt.span(5 * H, 0, 6 * H)) == "5.00 h (0–6.00)"
    assert fmt.span(None, 1, 2) == "–"


@pytest.mark.parametrize(
    ("frac", "text"),
    [(None, "–"), (0.0, "0 %"), (0.0004, "<0.1 %"), (0.031, "3.1 %"), (0.0996, "10 %"), (0.41, "41 %"), (1.0, "100 %")],
)
def test_percent(frac: float | None, text: str) -> None:
    assert shown(fmt.percent(frac)) == text


def test_a_share_of_nothing_is_missing_not_zero() -> None:
    assert fmt.share(0, 0) == "–"
    assert fmt.share(None, 5) == "–"
    assert shown(fmt.share(0, 5)) == "0 %"


def test_times_are_in_the_viewers_zone_with_its_offset() -> None:
    winter, summer = 1_700_000_000 * NS_PER_S, 1_690_000_000 * NS_PER_S
    assert fmt.moment(winter, BERLIN) == "14 Nov 2023, 23:13:20 +01:00"
    assert fmt.moment(summer, BERLIN) == "22 Jul 2023, 06:26:40 +02:00"
    assert fmt.moment(winter, ZoneInfo("UTC")) == "14 Nov 2023, 22:13:20 +00:00"
    assert fmt.moment(winter, ZoneInfo("America/St_Johns")) == "14 Nov 2023, 18:43:20 -03:30"
    shown_at = {fmt.minute(winter, BERLIN), fmt.minute(summer, BERLIN)}
    assert len(shown_at & {"14 Nov 2023, 23:13", "22 Jul 2023, 06:26"}) == 1, "the other one is not in today's offset"
    assert len(shown_at & {"14 Nov 2023, 23:13 +01:00", "22 Jul 2023, 06:26 +02:00"}) == 1
    assert fmt.iso(winter + 5 * NS_PER_MS) == "2023-11-14T22:13:20.005Z"
    assert (fmt.moment(None, BERLIN), fmt.iso(None)) == ("–", "")


def test_times_outside_the_calendar_do_not_break_a_page() -> None:
    assert fmt.moment(-(2**62), BERLIN).startswith("1 Jan 1970")
    assert "9999" in fmt.moment(2**63 - 1, ZoneInfo("UTC")) or fmt.iso(2**63 - 1) > "2262"
    assert fmt.iso(10**30).startswith("9999")


@pytest.mark.parametrize("name", [None, "", "No/Where", "../../etc/passwd", "x" * 4000, "\0", "Europe/Berlin\n"])
def test_an_unknown_zone_is_utc(name: str | None) -> None:
    assert fmt.zone_of(name).key == "UTC"


def test_names_from_outside_stay_on_one_line_and_show_what_they_hide() -> None:
    assert fmt.name("a\nb") == "a␤b"
    assert fmt.name("a\u202eb\x07") == "a�b�"
    assert fmt.name("x" * 500, limit=10) == "x" * 9 + "…"
    assert fmt.name("") == fmt.name(None) == "–"
    assert fmt.name("Grüße, 世界") == "Grüße, 世界"
    assert fmt.code("a\n\tb\x1b[31m") == "a\n\tb�[31m"


def test_devices_are_counted_by_kind() -> None:
    h100, a100 = make(Device, name="H100"), make(Device, name="A100")
    assert fmt.devices([h100] * 8) == "8 × H100"
    assert fmt.devices([h100, a100, h100]) == "2 × H100, A100"
    assert fmt.devices([]) == "–"
