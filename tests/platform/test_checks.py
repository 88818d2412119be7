"""Single values from outside: what is taken, what is refused, and that the refusal is one line."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightship_platform import validation
from tightship_platform.errors import Invalid
from tightship_platform.units import NS_PER_S

NOW = 1_790_000_000 * NS_PER_S


@pytest.mark.parametrize(
    "good",
    ["train", "<b>bold</b>", "a & b; rm -rf /", "模型 训练", "ünï", "👩‍🚀", "x" * 200, " padded ", "../etc"],
)
def test_names_keep_what_they_hold(good: str) -> None:
    assert validation.name("Workflow", good) == good


@given(st.text())
def test_a_name_that_is_taken_stays_on_its_line(text: str) -> None:
    try:
        taken = validation.name("Workflow", text)
    except Invalid as refused:
        assert "\n" not in str(refused)
        assert str(refused).isprintable() or not text.isprintable()
    else:
        assert len(taken.splitlines()) == 1
        assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in taken)
        assert taken.encode("utf-8")


@pytest.mark.parametrize(
    "bad", ["", "  ", "a\nb", "a\x85b", "\u2028", "\u202eabc", "\ud800", "\0", "x" * 201, None, 3, b""]
)
def test_names_that_break_a_line_are_refused(bad: Any) -> None:
    with pytest.raises(Invalid):
        validation.name("Workflow", bad)


def test_an_empty_optional_name_is_missing() -> None:
    assert validation.optional_name("Team", "") is validation.optional_name("Team", None) is None
    assert validation.optional_name("Team", "x") == "x"
    with pytest.raises(Invalid):
        validation.optional_name("Team", " \n")


@pytest.mark.parametrize("bad", ["", "-a", ".", "..", "a/b", "a b", "a\n", "ä", "x" * 41, None, 7])
def test_keys_that_do_not_fit_a_path_are_refused(bad: Any) -> None:
    with pytest.raises(Invalid):
        validation.key("Run", bad)


@given(st.text(), st.integers(2, 50))
def test_a_line_takes_everything_and_is_one(text: str, most: int) -> None:
    line = validation.line(text, most)
    assert len(line) <= most
    assert len(line.splitlines()) <= 1
    assert validation.line(line, most) == line


@given(st.text(alphabet=st.characters(), max_size=60), st.integers(2, 50))
def test_an_argument_can_be_stored_anywhere(text: str, most: int) -> None:
    kept = validation.argument(text, most)
    assert len(kept) <= most
    assert "\0" not in kept
    kept.encode("utf-8")
    if len(text) <= most and "\0" not in text and text.isascii():
        assert kept == text


@pytest.mark.parametrize(
    "bad", [validation.EARLIEST_NS - 1, NOW + validation.FUTURE_NS + 1, -1, 0, 1.0, True, "1", None]
)
def test_times_that_cannot_be_are_refused(bad: Any) -> None:
    with pytest.raises(Invalid, match="one day ahead"):
        validation.time_ns("time_ns", bad, NOW)
    for good in (validation.EARLIEST_NS, NOW, NOW + validation.FUTURE_NS):
        assert validation.time_ns("time_ns", good, NOW) == good


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.01, 1.51, "0.5", True, None, 10**400])
def test_ratios_that_cannot_be_are_refused(bad: Any) -> None:
    with pytest.raises(Invalid):
        validation.ratio("util_frac", bad)
    assert [validation.ratio("util_frac", good) for good in (0, 0.5, 1, 1.4)] == [0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    "bad", [float("nan"), float("-inf"), -0.01, 1.7e308, validation.COUNT_MAX + 1, "1", True, None, 10**400]
)
def test_numbers_that_cannot_be_are_refused(bad: Any) -> None:
    with pytest.raises(Invalid):
        validation.number("power_w", bad)


@pytest.mark.parametrize("bad", [-1, 2**53 + 1, 2**63, 1.0, True, "1", None])
def test_counts_that_no_sum_holds_are_refused(bad: Any) -> None:
    with pytest.raises(Invalid):
        validation.count("bytes", bad)
    assert validation.count("bytes", 2**53) == validation.COUNT_MAX == 2**53
