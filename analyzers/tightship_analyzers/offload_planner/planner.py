"""The search: prune by memory and by what the busiest resource needs anyway, decide by simulation.

found = search(profile, hardware, Constraints(device_bytes=8 * 2**30))
found.recommended, found.fastest, found.smallest, found.most_headroom

The recommendation is the smallest use of device memory whose step is within `TOLERANCE_FRAC` of the shortest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

from tightship_analyzers.offload_planner.candidate import Candidate, spread_over
from tightship_analyzers.offload_planner.constraints import Constraints, Limits, limits_for, shortfalls
from tightship_analyzers.offload_planner.profile import Profile
from tightship_analyzers.offload_planner.refusal import refuse
from tightship_analyzers.offload_planner.simulate import Result, simulate
from tightship_offload.plan.model import HardwareSpec, Recompute

TOLERANCE_FRAC = 0.005
"""A step this much longer than the shortest is as good, if it needs less memory."""
HEADROOM_COST_FRAC = 0.05
"""How much longer the step of the roomiest alternative may be."""
MOST_COUNTS = 12
"""Numbers of resident layers that are tried; between the best two of them all are."""
MOST_SIMULATIONS = 3000
CLIMBS = 12
"""Starting points for exchanging single layers, and how many exchanges are simulated from each."""
MOST_CLIMBED = 300
FEW = 7
"""So few layers that differ leave few enough sets of resident ones to look at each."""
SMALL = 12
"""With so few layers one is also exchanged for two, and two for one; with more of them less is tried."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A candidate and how it runs."""

    candidate: Candidate
    result: Result

    @property
    def step_ns(self) -> int:
        """One step."""
        return self.result.step_ns


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the search recommends, and the ends of the range."""

    recommended: Option
    fastest: Option
    smallest: Option
    most_headroom: Option
    limits: Limits
    simulated: int
    """Candidates that were simulated."""


def search(profile: Profile, hardware: HardwareSpec, constraints: Constraints | None = None) -> Found:
    """The best windows for a model on a machine.

    :raises PlanError: nothing fits; the line names the smallest change that makes it fit.
    """
    return _Search(profile, hardware, constraints or Constraints()).run()


@dataclass
class _Search:
    profile: Profile
    hardware: HardwareSpec
    constraints: Constraints
    options: dict[tuple[object, ...], Option] = field(default_factory=dict)

    def run(self) -> Found:
        self.limits = limits_for(self.hardware, self.constraints)
        groups = [group for one in self._windows() if (group := self._slot_range(one))]
        if not groups:
            refuse(self.profile, self.hardware, self.constraints, self.limits, list(self._smallest()))
        self._try_all(groups)
        self._climb()
        self._stream()
        # The smallest is worth showing even where it is too slow to have been tried.
        self._run(min((group[0] for group in groups), key=lambda one: one.memory.device))
        options = list(self.options.values())
        fastest = self._best()
        good = [one for one in options if one.step_ns <= fastest.step_ns * (1 + TOLERANCE_FRAC)]
        roomy = [one for one in options if one.step_ns <= fastest.step_ns * (1 + HEADROOM_COST_FRAC)]
        return Found(
            recommended=min(good, key=self._preference),
            fastest=fastest,
            smallest=min(options, key=lambda one: (one.candidate.memory.device, one.step_ns)),
            most_headroom=max(roomy, key=lambda one: (self.limits.headroom_frac(one.candidate.memory), -one.step_ns)),
            limits=self.limits,
            simulated=len(self.options),
        )

    def _try_all(self, groups: list[list[Candidate]]) -> None:
        """The most promising first; what cannot reach the best is not simulated.

        A group differs in slots only, and more of them never make a step longer: its largest window tells whether it
        is worth a look, and a search by halves finds its smallest window that is as good.
        """
        bound_ns = {id(group): group[-1].bound_ns for group in groups}
        least = min(bound_ns.values())

        def promise(group: list[Candidate]) -> tuple[object, ...]:
            classes = math.log(max(1, bound_ns[id(group)])) // math.log1p(TOLERANCE_FRAC)
            return (classes, *self._changes(group[0]), group[0].memory.device)

        best: int | None = None
        for group in sorted(groups, key=promise):
            enough = math.inf if best is None else best * (1 + TOLERANCE_FRAC)
            if bound_ns[id(group)] > enough:
                continue
            if len(self.options) >= MOST_SIMULATIONS:
                break
            step_ns = self._run(group[-1]).step_ns
            if step_ns > enough:
                continue
            best = step_ns if best is None else min(best, step_ns)
            self._fewest_slots(group, step_ns * (1 + TOLERANCE_FRAC / 2))
            if best <= least * (1 + TOLERANCE_FRAC / 2):
                break  # the others are larger, and none is faster by more than the tolerance

    def _fewest_slots(self, group: list[Candidate], enough_ns: float) -> None:
        low, high = 0, len(group) - 1
        while low < high:
            middle = (low + high) // 2
            if self._run(group[middle]).step_ns <= enough_ns:
                high = middle
            else:
                low = middle + 1

    def _run(self, candidate: Candidate) -> Option:
        key = (
            candidate.slots,
            candidate.resident,
            candidate.gpu_resident,
            candidate.gpu_streamed,
            candidate.recompute,
            candidate.micro_batches,
        )
        if key not in self.options:
            result = simulate(candidate.work, candidate.links, candidate.choice)
            self.options[key] = Option(candidate=candidate, result=result)
        return self.options[key]

    def _changes(self, candidate: Candidate) -> tuple[int, bool]:
        """What the user would have to change in the loop: first how often the batch is split, then recomputation."""
        return candidate.micro_batches, candidate.recompute is not self.profile.recompute

    def _preference(self, option: Option) -> tuple[object, ...]:
        memory = option.candidate.memory
        return (*self._changes(option.candidate), memory.device, memory.host, option.step_ns)

    def _best(self) -> Option:
        return min(self.options.values(), key=self._order)

    @staticmethod
    def _order(option: Option) -> tuple[int, int]:
        return option.step_ns, option.candidate.memory.device

    def _climb(self) -> None:
        """Where layers differ, the best set of resident ones has no pattern: exchange layers while that helps."""
        starts: dict[tuple[object, ...], Option] = {}
        for option in sorted(self.options.values(), key=self._order):
            one = option.candidate
            starts.setdefault((one.recompute, one.micro_batches, bool(one.gpu_resident), len(one.resident)), option)
        small = len(self.profile.layers) <= SMALL
        for start in list(starts.values())[: CLIMBS if small else CLIMBS // 4]:
            at, left = start, MOST_CLIMBED if small else MOST_CLIMBED // 3
            while left > 0:
                at_ns = at.step_ns
                for group in self._neighbours(at.candidate):
                    if group[-1].bound_ns >= at_ns:
                        continue
                    left -= 1
                    option = self._run(group[-1])
                    if option.step_ns < at.step_ns * (1 - TOLERANCE_FRAC / 4):
                        self._fewest_slots(group, option.step_ns * (1 + TOLERANCE_FRAC / 2))
                        at = option
                        break
                    if left == 0:
                        break
                if at.step_ns == at_ns:
                    break

    def _neighbours(self, one: Candidate) -> Iterator[list[Candidate]]:
        """One layer more or less, or another one; of layers that cost the same only the first is exchanged."""
        if self.constraints.resident is not None:
            return
        layers = self.profile.layers
        others = [i for i in range(len(layers)) if i not in one.resident]
        kinds = {layers[i]: i for i in reversed(others)}
        sets = [one.resident | {i} for i in kinds.values()]
        sets += [one.resident - {i} for i in one.resident]
        sets += [one.resident - {i} | {k} for i in one.resident for k in kinds.values() if layers[i] != layers[k]]
        if len(layers) <= SMALL:
            pairs = [frozenset(pair) for pair in combinations(sorted(kinds.values()), 2)]
            gone = [frozenset(pair) for pair in combinations(sorted(one.resident), 2)]
            sets += [one.resident - {i} | pair for i in one.resident for pair in pairs]
            sets += [one.resident - pair | {k} for pair in gone for k in kinds.values()]
        for resident in sets:
            on_cpu = self.constraints.residents_on_cpu and one.resident and not one.gpu_resident
            placed = frozenset[int]() if on_cpu else resident
            group = self._slot_range(
                replace(one, resident=resident, gpu_resident=placed, gpu_streamed=one.gpu_streamed - resident)
            )
            if group:
                yield group

    def _stream(self) -> None:
        """How many layers stream through the device to be updated: to the layer, around the best."""
        if not self.constraints.may_stream:
            return
        base = self._best().candidate
        moving = [i for i in range(len(self.profile.layers)) if i not in base.resident]
        self._descend(lambda count: replace(base, gpu_streamed=frozenset(moving[len(moving) - count :])), len(moving))
        self._descend(lambda count: replace(base, gpu_streamed=spread_over(moving, count)), len(moving))

    def _descend(self, make: Callable[[int], Candidate], most: int) -> None:
        """Step times over a count have one valley: try coarse counts, then all between the neighbours of the best."""
        if most == 0:
            return
        stride = max(1, most // 8)
        tried: dict[int, int] = {}

        def attempt(count: int) -> None:
            option = self._run_if_fits(make(count))
            if option is not None:
                tried[count] = option.step_ns

        for count in range(0, most + 1, stride):
            attempt(count)
        while stride > 1 and tried:
            centre = min(tried, key=lambda count: (tried[count], count))
            stride = max(1, stride // 2)
            for count in (centre - stride, centre + stride):
                if 0 <= count <= most and count not in tried:
                    attempt(count)

    def _run_if_fits(self, candidate: Candidate) -> Option | None:
        return None if shortfalls(candidate.memory, self.limits) else self._run(candidate)

    def _windows(self) -> Iterator[Candidate]:
        """All that is tried, except for the number of slots."""
        count = len(self.profile.layers)
        residents = (
            [frozenset(self.constraints.resident)] if self.constraints.resident is not None else self._resident_sets()
        )
        for base in self._loops():
            for resident in residents:
                if resident and self.constraints.residents_on_cpu:
                    yield replace(base, resident=resident)
                placed = replace(base, resident=resident, gpu_resident=resident)
                yield placed
                moving = [i for i in range(count) if i not in resident]
                for quarters in (1, 2, 3, 4) if self.constraints.may_stream else ():
                    first = len(moving) * (4 - quarters) // 4
                    yield replace(placed, gpu_streamed=frozenset(moving[first:]))

    def _slot_range(self, base: Candidate) -> list[Candidate]:
        """The same with every number of slots that fits, in ascending order."""
        moving = len(self.profile.layers) - len(base.resident)
        if self.constraints.slots is not None:
            counts = range(self.constraints.slots, self.constraints.slots + 1)
        else:
            counts = range(min(2, max(1, moving)), max(1, moving) + 1)
        found: list[Candidate] = []
        for slots in counts:
            one = replace(base, slots=slots)
            if shortfalls(one.memory, self.limits):
                break
            found.append(one)
        return found

    def _loops(self) -> Iterator[Candidate]:
        recomputes = list(Recompute) if self.constraints.recompute is None else [self.constraints.recompute]
        for recompute in recomputes:
            for micro_batches in self._micro_batches():
                yield Candidate(
                    profile=self.profile,
                    hardware=self.hardware,
                    rules=self.constraints.rules,
                    slots=2,
                    recompute=recompute,
                    micro_batches=micro_batches,
                    in_files=self.constraints.in_files,
                )

    def _micro_batches(self) -> list[int]:
        given = self.profile.micro_batches
        if self.constraints.micro_batches is not None:
            return [self.constraints.micro_batches]
        batch = self.profile.batch or 1
        return [given * cut for cut in range(1, min(batch, 64) + 1) if batch % cut == 0]

    def _smallest(self) -> Iterator[Candidate]:
        """All that is tried with the fewest slots, for a refusal to start from."""
        for one in self._windows():
            moving = max(1, len(self.profile.layers) - len(one.resident))
            yield replace(one, slots=self.constraints.slots or min(2, moving))

    def _resident_sets(self) -> list[frozenset[int]]:
        """Layers to keep: the first (updated last, needed first), the last, evenly spread ones; all sets of a few."""
        count = len(self.profile.layers)
        found: dict[frozenset[int], None] = {}
        if count <= FEW and len(set(self.profile.layers)) > 1:
            every = (combinations(range(count), size) for size in range(count + 1))
            found.update(dict.fromkeys(frozenset(one) for sized in every for one in sized))
            return list(found)
        stride = max(1, -(-count // MOST_COUNTS))
        for kept in sorted({*range(0, count + 1, stride), *range(min(4, count) + 1), count}):
            found[frozenset(range(kept))] = None
            found[frozenset(range(count - kept, count))] = None
            found[spread_over(range(count), kept)] = None
        return list(found)
