"""Facts declare what they need, and the store answers for what is missing."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import pytest
from made_trace import MadeTrace

from tightship_analyzers import facts as folder
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.kernels.matrix_products import MatrixProducts
from tightship_analyzers.facts.memo import Fact, Facts, Needs, NotApplicable
from tightship_analyzers.facts.window.window import Window


def every_fact() -> dict[str, type[Fact]]:
    found = {}
    for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if kind.__module__ == module.name and "derive" in vars(kind) and kind is not Fact:
                found[name] = kind
    return found


@pytest.mark.parametrize("kind", every_fact().values(), ids=every_fact())
def test_a_fact_declares_what_it_takes_for_given(kind: type[Fact]) -> None:
    facts, given = every_fact(), set(kind.needs)
    for name in re.findall(r"facts\[(\w+)\]", inspect.getsource(kind.derive)):
        taken = facts[name]
        always = "NotApplicable" not in inspect.signature(taken.derive).return_annotation
        # What is used on one branch only need not be declared, where nothing but a declared need can be missing.
        assert taken in given or (always and set(taken.needs) <= given), name


def test_the_first_missing_need_gives_the_reason(tmp_path: Path) -> None:
    made = MadeTrace()
    made.steps(100, 200, 300)
    facts = Facts(made.read(tmp_path))
    why = facts.get(MatrixProducts)
    assert why == facts.get(KernelOps)
    assert isinstance(why, NotApplicable) and "accelerator" in why.reason
    assert facts.costs["KernelOps"].used_by == ["MatrixProducts", Facts.UNASKED]
    assert "OpShapes" not in facts.costs, "one reason is enough"


@dataclass(frozen=True)
class Selfish:
    """Needs itself."""

    needs: ClassVar[Needs] = ()

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        return cls()


def test_needs_in_a_circle_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeTrace()
    made.steps(100, 200, 300)
    facts = Facts(made.read(tmp_path))
    assert facts.missing((Window, Selfish)) is None
    monkeypatch.setattr(Selfish, "needs", (Window, Selfish))
    with pytest.raises(RuntimeError, match="Selfish → Selfish"):
        Facts(facts.trace).get(Selfish)
