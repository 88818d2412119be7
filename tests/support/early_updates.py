"""What became of updates that started during backward."""

from __future__ import annotations

from typing import Any

import pytest

from tightship_offload.runtime.early_updates import EarlyUpdates, Undo


class Watch:
    """How many there were, and how many were taken back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = self.given_back = 0
        take, give_back = Undo.take, Undo.give_back

        def taking(undo: Undo, *args: Any) -> None:
            self.taken += 1
            take(undo, *args)

        def giving_back(undo: Undo) -> None:
            self.given_back += 1
            give_back(undo)

        monkeypatch.setattr(Undo, "take", taking)
        monkeypatch.setattr(Undo, "give_back", giving_back)


EARLY = {"window": 2, "early": EarlyUpdates(micro_batches=2)}
