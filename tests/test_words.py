"""One list of words that this project replaced by ordinary English in the field's terms; none may come back.

The offload package, its docs and its tests follow with their own issue. What the program prints is made from these
files: help texts and rule pages are generated into docs/, which are searched, too.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from source_tree import ROOT

IDENTIFIERS = (
    *("is_untold", "untold", "point_home", "Ledger", "zero_edit", "take_back", "undistort", "uplink", "last_words"),
    *("side_by_side", "capture_flow", "place_book", "holdings", "second_reader", "inject_later", "verdict_words"),
    *("step_pace", "told", "wished", "wishes", "happens_before", "dearest", "pulse", "distortion"),
    *("infeasible", "leasing", "sweeping", "cutter"),
)
"""Replaced names, found as whole words or as a part of a name between underscores."""

PHRASES = (
    r"(?:is|are|was|were|be|been) told",
    r"anew",
    r"how manieth",
    r"but for",
    r"from which on",
    r"(?:stands?|stood) in a (?:copy|synchroni[sz]ation|collective)",
    r"(?:runs?|ran) dry",
    r"an? (?:[\w-]+ )?[\w-]+ of (?:its|their|our|his) own",
    r"works \d+(?:\.\d+)? %",
    r"wish(?:es)?",
    r"desk",
    r"synchronis\w+",
    r"offline\w*",
    r"\[Note: (?:holding|distortion)\]",
    r"(?:ranks?|traces) (?:[\w-]+ ){0,4}side by side",
    r"def (?:_?said|_?tells|each)",
    r"asked:\x20\w+(?:[,)[]|\s\|)",
    r"said_of",
    r"claiming\.\w+",
    r"no rule could judge",
    r"gives? back any of",
    r"(?:against|under) the roof of",
    r"communication that nothing hides",
    r"travels? through memory",
    r"host waits for a value",
    r"roof of [a-z0-9]+-sxm",
)
"""Regular expressions; a space stands for any white space, because lines break anywhere."""

MODULES = (
    *("asking", "asks", "leasing", "moves", "storing", "sweeping", "reads", "judgement", "desk", "wish"),
    *("question", "holding", "holdings", "offline", "gathering", "cutter", "uplink", "pulse", "distortion"),
    *("early", "saved", "settle", "lane", "mark", "reach", "home", "told", "said", "asked", "claiming", "breakdown"),
)
"""Replaced names of modules; elsewhere they are ordinary English."""

ELSEWHERE = (
    "offload/",
    "docs/offload",
    "docs/decisions/0014-tests-and-their-successors.md",
    "tests/offload/",
    "tests/support/offload_",
    "tests/data/",
    "examples/data/",
    "tests/test_words.py",
)
"""The offload issue's files, former names of tests, other programs' recordings, and a poem."""

_GAP = r"[\s#]+"
_NAMES = rf"(?<![a-zA-Z])(?:{'|'.join(IDENTIFIERS)})(?![a-zA-Z])"
_SAYINGS = rf"(?<!\w)(?:{'|'.join(PHRASES).replace(' ', _GAP)})(?!\w)"
_WORDS = re.compile(f"{_NAMES}|{_SAYINGS}", re.IGNORECASE)


def words_in(text: str) -> list[str]:
    """Listed words that a text holds, each with its line."""
    return [f"{text.count(chr(10), 0, one.start()) + 1}: {one.group()}" for one in _WORDS.finditer(text)]


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [ROOT / name for name in listed if name and not name.startswith(ELSEWHERE)]


@pytest.mark.parametrize(
    "planted",
    [
        *IDENTIFIERS,
        *("run.is_untold", "def point_home(self) -> None:", "MAX_HOLDINGS = 3"),
        *("A file that cannot be read is told.", "made\n    anew", "the how manieth of them", "all but\n# for one"),
        *(
            "the share from which on it counts",
            "The host stands in a copy",
            "the device ran dry",
            "a bar of its\n  own",
        ),
        *("The device works 6.0 % of the step", "on a desk", "a synchronisation", "class OfflineDiff:", "_Pulse"),
        *("See [Note: holding].", "The ranks of one run side by side", "def _said(text: str)", "f(one, asked: int)"),
        *("gap.said_of(one)", "see claiming.unit_of"),
    ],
)
def test_a_planted_word_is_found(planted: str) -> None:
    assert words_in(f"Before.\n{planted}\nAfter.")


@pytest.mark.parametrize(
    "plain",
    [
        *("at the end of its own last step", "a desktop", "not built for", "retold", "a network of roles"),
        *(
            "kernels may run side by side",
            "for one in asked:",
            "who asked: the token",
            "impulse",
            "holding a lock",
            "def each_step()",
        ),
    ],
)
def test_ordinary_english_is_not_found(plain: str) -> None:
    assert not words_in(plain)


def subject_of(path: Path) -> str:
    """The name of a module, or of what a test is of."""
    return path.stem.removeprefix("test_").removesuffix("_contract")


def test_no_module_has_a_replaced_name() -> None:
    assert subject_of(Path("tests/contracts/test_holding_contract.py")) in MODULES
    assert [str(path) for path in files() if path.suffix == ".py" and subject_of(path) in MODULES] == []


def test_no_replaced_word_is_left() -> None:
    found = {}
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        if words := [*words_in(path.name), *words_in(text)]:
            found[str(path.relative_to(ROOT))] = words
    assert found == {}
