"""The lazy, memoised store of facts of one trace.

[Note: facts] A fact is a frozen class with `needs` and a class method `derive`. Rules and facts name in `needs` what
they cannot do without: where one of these cannot be derived, its reason is theirs, and they are not asked. `Facts`
derives each fact at most once, on first use, and remembers also that one cannot be derived, with the reason. So a rule
costs only what its own needs cost, and an expensive fact that no rule asks for is never built.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, TypeVar

from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

__all__ = ["Cost", "Fact", "Facts", "Needs", "NotApplicable"]


class Fact(Protocol):
    """Anything that can be derived from a trace and other facts."""

    needs: ClassVar[Needs]
    """Facts without which it is not applicable."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Compute it, with `facts[...]` of its needs, or say what else is missing."""
        ...


Needs = tuple[type[Fact], ...]

F = TypeVar("F", bound=Fact)


@dataclass(slots=True)
class Cost:
    """What one fact took to derive and who asked for it (for `--explain`)."""

    self_ns: int = 0
    """Wall time without that of the facts it needed itself."""
    used_by: list[str] = field(default_factory=list)


class Facts:
    """The facts of one trace."""

    UNASKED: ClassVar[str] = "(direct)"

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.costs: dict[str, Cost] = {}
        self._known: dict[type[Fact], Any] = {}
        self._asking: list[str] = []
        self._inner_ns = 0

    def get(self, kind: type[F], *, asker: str | None = None) -> F | NotApplicable:
        """The fact, or why there is none."""
        name = kind.__name__
        cost = self.costs.setdefault(name, Cost())
        who = asker or (self._asking[-1] if self._asking else self.UNASKED)
        if who not in cost.used_by:
            cost.used_by.append(who)
        if kind not in self._known:
            if name in self._asking:
                raise RuntimeError(f"fact {name} needs itself: {' → '.join([*self._asking, name])}")
            outer_ns, self._inner_ns = self._inner_ns, 0
            self._asking.append(name)
            begun = time.perf_counter_ns()
            try:
                missing = self.missing(kind.needs)
                self._known[kind] = kind.derive(self) if missing is None else missing
            finally:
                spent = time.perf_counter_ns() - begun
                self._asking.pop()
                cost.self_ns += spent - self._inner_ns
                self._inner_ns = outer_ns + spent
        known: F | NotApplicable = self._known[kind]
        return known

    def missing(self, needs: Needs, *, asker: str | None = None) -> NotApplicable | None:
        """Why the first of the needs that cannot be derived cannot; None where all can."""
        for need in needs:
            known = self.get(need, asker=asker)
            if isinstance(known, NotApplicable):
                return known
        return None

    def known(self) -> Mapping[str, Fact | NotApplicable]:
        """Name → fact, or why there is none, of those that were asked for."""
        return {kind.__name__: fact for kind, fact in self._known.items()}

    def give(self, fact: Fact) -> None:
        """Make this the fact of its kind, instead of deriving it: the steps that a user picked."""
        self._known[type(fact)] = fact

    def __getitem__(self, kind: type[F]) -> F:
        """The fact, where the asker has declared that it needs it.

        :raises LookupError: there is none; the asker should have declared its need or used `get`.
        """
        fact = self.get(kind)
        if isinstance(fact, NotApplicable):
            raise LookupError(f"{kind.__name__} is not applicable: {fact.reason}")
        return fact

    def find(self, kind: type[F]) -> F | None:
        """The fact, or None: for askers that can do without."""
        fact = self.get(kind)
        return None if isinstance(fact, NotApplicable) else fact
