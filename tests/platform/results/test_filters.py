"""Filters as people write them: times of several forms, labels, commits; what is none of these is one line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tightship_platform.errors import Invalid
from tightship_platform.results.filters import ALL, MOST_LABELS, Filters, FilterTexts
from tightship_platform.units import NS_PER_S

NOW_DAY = datetime(2026, 11, 23, tzinfo=UTC)
NOW = int(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()) * NS_PER_S
H = 3600 * NS_PER_S
BERLIN = ZoneInfo("Europe/Berlin")


def read(**given: Any) -> Filters:
    return FilterTexts(**given).read(zone=BERLIN, now=NOW)


def at(*when: int, zone: Any = BERLIN) -> int:
    return int(datetime(*when, tzinfo=zone).timestamp()) * NS_PER_S  # type: ignore[misc, arg-type]


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", NOW - 2 * H),
        ("3d", NOW - 72 * H),
        (" 90m ", NOW - 3 * H // 2),
        ("1.5h", NOW - 3 * H // 2),
        ("999999999d", 0),
        ("2026-11-12", at(2026, 11, 12)),
        ("2026-11-12 14:03", at(2026, 11, 12, 14, 3)),
        ("2026-07-12T14:03:22", at(2026, 7, 12, 14, 3, 22)),
        ("2026-11-12T14:03:22Z", at(2026, 11, 12, 14, 3, 22, zone=UTC)),
        ("2026-11-12T14:03:22.25+05:30", at(2026, 11, 12, 8, 33, 22, zone=UTC) + NS_PER_S // 4),
        ("1969-01-01", 0),
        ("today", at(NOW_DAY.year, NOW_DAY.month, NOW_DAY.day)),
        ("yesterday", at(NOW_DAY.year, NOW_DAY.month, NOW_DAY.day) - 24 * H),
    ],
)
def test_a_time_is_a_while_ago_a_day_or_a_moment(in_berlin: None, text: str, expected: int) -> None:
    assert read(since=text).since_ns == expected
    assert FilterTexts(since=text).read(zone=None, now=NOW).since_ns == expected, "of this machine"


def test_a_day_counts_until_its_end() -> None:
    assert read(until="2026-11-12").until_ns == at(2026, 11, 13)
    assert read(until="2026-03-29").until_ns == at(2026, 3, 30), "a day of 23 hours"
    assert read(until="2026-11-12 00:00").until_ns == at(2026, 11, 12)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        *(
            ({"since": text}, "since is ")
            for text in ("3", "soon", "-2h", "2 weeks", "2026-13-01", "24:00", "1e9d", "\0")
        ),
        *(({"since": text}, "since is ") for text in ("9" * 500, "9" * 500 + "d", "2026-11-12T14:03+99:00", "٢h")),
        ({"since": "2h", "until": "3h"}, "until is '3h'; expected a time after since, which is '2h'"),
        ({"until": "tomorrow"}, "until is 'tomorrow'; expected a time such as 2h or 3d"),
        ({"label": ("lr",)}, "label is 'lr'; expected key=value"),
        ({"label": ("=3",)}, "Label is ''"),
        ({"label": ("a=\x1b[31m",)}, "Label a is "),
        ({"label": ("a=b",) * (MOST_LABELS + 1)}, f"Number of labels is {MOST_LABELS + 1}"),
        *(({"commit": text}, "commit is ") for text in ("HEAD", "abc", "a" * 65, "g" * 40, "aaaa%")),
        *(({"rule": text}, "rule is ") for text in ("x y", "-x", "r" * 65, "x%")),
        *(({name: "a\nb"}, f"{name} is ") for name in ("workflow", "team", "owner", "user", "host", "job_id")),
        ({"workflow": "x" * 201}, "workflow is "),
    ],
)
def test_what_is_no_such_value_is_one_line(given: dict[str, Any], what: str) -> None:
    with pytest.raises(Invalid) as refused:
        read(**given)
    assert str(refused.value).startswith(what)
    assert len(str(refused.value).splitlines()) == 1 and len(str(refused.value)) < 300


def test_a_search_is_words_labels_and_filters_in_one_line() -> None:
    found = read(search='vision lr=3e-4 host:gpu17 job:47 commit:5EED label:note="a b" since:2h pod/x:y "two words"')
    assert found == Filters(
        since_ns=NOW - 2 * H, host="gpu17", job_id="47", commit="5eed", labels=(("lr", "3e-4"), ("note", "a b")),
        words=("vision", "pod/x:y", "two words"),
    )  # fmt: skip
    assert FilterTexts(**found.query()).read(zone=UTC, now=0) == found  # type: ignore[arg-type]
    assert read(search="  ", host="h") == Filters(host="h")
    assert read(search="url=http://x:1/y search:x label:").labels == (("url", "http://x:1/y"),)
    assert read(search="search:x label:").words == ("search:x", "label:")
    both = read(search="b=2", label=("a=1",), team="t")
    assert both == Filters(labels=(("a", "1"), ("b", "2")), team="t")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("since:soon", "since is 'soon'"),
        ("commit:HEAD", "commit is 'HEAD'"),
        ("=x", "Label is ''"),
        ("a\x1bb", "search is "),
        ("w " * 9, "Number of words in search is 9"),
        ("x" * 501, "search is "),
        (" ".join("a=b" for _ in range(MOST_LABELS + 1)), "Number of labels"),
    ],
)
def test_a_search_for_what_cannot_be_is_one_line(text: str, what: str) -> None:
    with pytest.raises(Invalid) as refused:
        read(search=text)
    assert str(refused.value).startswith(what) and len(str(refused.value).splitlines()) == 1


def test_what_is_empty_is_missing() -> None:
    assert read(since="", workflow="", commit="", rule="", state="") == ALL


def test_what_is_read_is_read_again_from_a_query() -> None:
    given = read(
        since="36h", until="2026-11-23", workflow="a b", team="t", owner="o", user="u", host="h", job_id="7",
        state="failed", commit="5EED1E", rule="starved-input", label=("lr=3e-4", "a=b=c", "note="),
    )  # fmt: skip
    assert given.commit == "5eed1e" and given.labels == (("lr", "3e-4"), ("a", "b=c"), ("note", ""))
    assert FilterTexts(**given.query()).read(zone=UTC, now=0) == given  # type: ignore[arg-type]
    assert ALL.query() == {}
