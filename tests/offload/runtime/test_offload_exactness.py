"""Bitwise: a window changes no parameter, no optimizer state and no loss. `make exactness` runs the whole product,
`make exactness PART=2/12` the second of twelve parts of it.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Case, Training, all_cases, differences, drawn_cases, reference, windowed  # noqa: E402
from offload_machines import KINDS  # noqa: E402

from tightship_offload.backends.base import Lane  # noqa: E402
from tightship_offload.backends.race_detector import RaceError  # noqa: E402
from tightship_offload.errors import OffloadError  # noqa: E402
from tightship_offload.runtime.layer import Layer  # noqa: E402
from tightship_offload.runtime.slots import Slot  # noqa: E402

pytestmark = pytest.mark.torch

WANTED = os.environ.get("TIGHTSHIP_EXACTNESS", "")
"""Of the product: `all`, `K/N` for the Kth of N parts, or empty for a random slice."""
SEED = int(os.environ.get("TIGHTSHIP_EXACTNESS_SEED", random.SystemRandom().randrange(10**6)))
SLICE = {"cpu": 2, "async": 1}
STEPS = {"cpu": 50, "async": 6}
"""By kind of machine."""


def check(case: Case, kind: str) -> None:
    steps = STEPS[kind]
    found, engine, ledger = windowed(case, steps, kind=kind)
    assert differences(reference(case.training, steps), found) == [], str(case)
    assert ledger.races == []
    assert ledger.accesses > 20 * steps, "the checker has watched"
    assert engine.last is not None and engine.last.step == steps


def trainings() -> list[str]:
    """Those of the wanted part, in an order that spreads the dear ones over the parts."""
    known = sorted({str(case.training) for case in all_cases()})
    random.Random(0).shuffle(known)
    part, _, parts = ("1/1" if WANTED == "all" else WANTED).partition("/")
    return known[int(part) - 1 :: int(parts)]


if WANTED:

    @pytest.mark.timeout(0)
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("training", trainings())
    def test_whole_product(training: str, kind: str) -> None:
        for case in all_cases():
            if str(case.training) == training:
                check(case, kind)

else:

    @pytest.mark.parametrize("kind", KINDS)
    def test_random_slice_of_the_product(kind: str) -> None:
        sys.stdout.write(f"TIGHTSHIP_EXACTNESS_SEED={SEED}\n")
        for case in drawn_cases(SEED, SLICE[kind]):
            check(case, kind)


def test_layers_that_share_the_storages_of_slots_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: a layer's weights are views of its slot, in which another layer is by the time of backward."""

    def give(self: Slot, layer: Layer, slots: Any) -> None:
        layer.on_device = self._has_block[: layer.size_bytes]
        layer.device_views = [piece.of(layer.on_device) for piece in layer.pieces]

    case = Case(training=Training(), window=3, seed=5)
    assert differences(reference(case.training), windowed(case, prefetch=0)[0]) == []
    monkeypatch.setattr(Slot, "give", give)
    assert differences(reference(case.training), windowed(case, prefetch=0)[0]) != []


def test_a_missing_wait_is_caught_whatever_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Lane.submit

    def hasty(self: Lane, what: str, work: Any, after: Any = (), *, place: int = 0) -> Any:
        return submit(self, what, work, (), place=place)

    case = Case(training=Training(), window=2, seed=5)
    monkeypatch.setattr(Lane, "submit", hasty)
    with pytest.raises(RaceError, match=r"without waiting for"):
        windowed(case, delay_s=0.0)


def test_an_update_that_is_not_waited_for_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from tightship_offload.runtime.window import Window

    fetch = Window._fetch

    def without_update(self: Window, layer: Any, keep: Any = ()) -> Any:
        kept, layer.updated = layer.updated, None
        try:
            return fetch(self, layer, keep)
        finally:
            layer.updated = kept

    monkeypatch.setattr(Window, "_fetch", without_update)
    # Which of the two comes first, and so is the one that did not wait, is chance.
    races = r"(h2d reads weights of .* without waiting for update|update writes weights of .* without waiting for h2d)"
    with pytest.raises(OffloadError, match=races):
        windowed(Case(training=Training(), window=2), delay_s=0.0)
