"""Numbers as people read them."""

from __future__ import annotations

import pytest

from tightship_platform.units import format_bytes, format_frac, format_ns, plural, unbroken


def test_one_is_not_many() -> None:
    assert [plural(n, "finding") for n in (0, 1, 2, 1200)] == [
        "0 findings",
        "1 finding",
        "2 findings",
        "1,200 findings",
    ]
    assert [plural(n, "copy", "copies") for n in (1, 2)] == ["1 copy", "2 copies"]


@pytest.mark.parametrize(
    "said",
    [
        format_frac(0.79),
        format_ns(12_300_000),
        format_ns(90 * 10**9),
        format_bytes(3 << 30),
        "300 W",
        "2.5 GB/s",
        "7 µs",
    ],
)
def test_a_number_keeps_its_unit(said: str) -> None:
    kept = said.replace(" ", "\u00a0")
    assert unbroken(f"It takes {said}, of which {said}.") == f"It takes {kept}, of which {kept}."


@pytest.mark.parametrize("text", ["step 7 starts", "torch 2 mse", "rank 3 Send", "line 4 d/x", "a b", "5 and %"])
def test_other_words_may_stand_on_the_next_line(text: str) -> None:
    assert unbroken(text) == text
