"""Discrete-event simulation of a windowed training run: exact, in integers of nanoseconds.

result = simulate(work, links, choice)
result.step_ns, result.bottleneck, result.waits_ns

Four resources: the compute stream, one link each way (which slow each other down), and the CPU that updates. The rules
are those of [Note: one step of a windowed run] in schedule.py. Every nanosecond in which the compute stream does
nothing is counted under exactly one cause.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from tightship_analyzers.offload_planner.schedule import GRADIENTS_IN_FLIGHT, Choice, Kind, Links, Op, Work, operations
from tightship_offload.plan.model import Bottleneck, Clipping, Placement, UpdateOrder, UpdateStart

NS = 1_000_000_000
MOST_STEPS = 8
COUNTED_STEPS = 4
"""Where steps do not settle to one length, so many of the last ones are counted."""
SPECULATIVE_COST = (13, 7)
"""A speculative update also copies what it overwrites: 28 bytes of traffic per parameter become 52."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The steady state, over `steps` steps that took `window_ns` together."""

    steps: int
    window_ns: int
    busy_ns: dict[Bottleneck, int]
    """By resource, in the window."""
    waits_ns: dict[Bottleneck, int]
    """Idle time of the compute stream by cause; with its busy time it adds up to the window, exactly."""
    h2d_bytes: int
    """In the window."""
    d2h_bytes: int

    @property
    def step_ns(self) -> int:
        """One step."""
        return round(self.window_ns / self.steps)

    @property
    def bottleneck(self) -> Bottleneck:
        """What most of the waiting is for; `compute` where waiting is under 2 % of the step."""
        waited = sum(self.waits_ns.values())
        if waited * 50 < self.window_ns:
            return Bottleneck.COMPUTE
        return max(self.waits_ns, key=lambda cause: self.waits_ns[cause])


def simulate(work: Work, links: Links, choice: Choice, *, most_steps: int = MOST_STEPS) -> Result:
    """Run steps until two in a row take the same time, at most `most_steps`, and report the last."""
    run = _Run(work, links, choice, most_steps)
    done = 0
    while done < most_steps:
        run.until_step(done)
        done += 1
        ends = run.step_ends_ns
        if done >= 3 and ends[-1] - ends[-2] == ends[-2] - ends[-3]:
            return run.result(done - 1, done)
    return run.result(max(1, done - COUNTED_STEPS), done)


@dataclass(slots=True)
class _Transfer:
    """What a link carries. `left` is in bytes × 10⁹, so that a rate in bytes/s takes whole units in each ns."""

    before_ns: int
    """Until the first byte moves, whatever the other link does."""
    left: int
    kind: str
    layer: int
    step: int
    load: int = -1


class _Run:
    """The state of one simulation."""

    def __init__(self, work: Work, links: Links, choice: Choice, steps: int) -> None:
        self.work, self.links, self.choice = work, links, choice
        self.layers = work.layers
        self.count = len(self.layers)
        self.ops, self.loads = operations(work, choice, steps)
        self.now_ns = 0
        self.step_ends_ns: list[int] = []
        # compute
        self.at = 0
        self.running: Op | None = None
        self.compute_left = 0
        self.device_updates: deque[tuple[int, int]] = deque()
        self.device_update: tuple[int, int] | None = None
        self.visits_begun = False
        # slots
        self.free = choice.slots
        self.next_load = 0
        self.present = [False] * len(self.loads)
        self.visit = 0
        """The visit that computes or was last to, or that a forward which has begun will make first."""
        # links
        self.h2d: _Transfer | None = None
        self.d2h: _Transfer | None = None
        self.urgent: list[tuple[int, int, int, str]] = []  # H2D beside fetches: (next use, layer, step, kind)
        self.leaving: deque[_Transfer] = deque()
        # updates
        self.current = [0] * self.count
        """By layer: the step that its weights on the host (a resident layer's: on the device) are ready for."""
        self.gone = [0] * self.count
        """By layer: micro-batches whose gradients are on the host, over all steps."""
        self.sent = [0] * self.count
        self.cpu: tuple[str, int, int] | None = None
        self.cpu_left = 0
        self.cpu_ready: list[tuple[int, int, int]] = []
        self.flying = 0
        """Layers whose gradients are on their way."""
        self.order = 0
        self.asked = 0
        """Steps whose updates may begin."""
        self.norms = 0
        self.pending: list[tuple[int, int]] = []
        self.trained = [one.gradient_bytes > 0 for one in self.layers]
        self.leaves = [one.gradient_bytes > 0 and one.placement is not Placement.GPU_RESIDENT for one in self.layers]
        # figures by step
        self.busy: list[dict[Bottleneck, int]] = [dict.fromkeys(Bottleneck, 0) for _ in range(steps)]
        self.waits: list[dict[Bottleneck, int]] = [dict.fromkeys(Bottleneck, 0) for _ in range(steps)]
        self.moved: list[list[int]] = [[0, 0] for _ in range(steps)]

    def until_step(self, step: int) -> None:
        """Go on until the step's last operation has ended."""
        while len(self.step_ends_ns) <= step:
            while self._start_something():
                pass
            if len(self.step_ends_ns) > step:  # steps of no length end as they begin
                return
            self._advance()

    def result(self, first: int, end: int) -> Result:
        """The figures of steps [first, end)."""
        begin_ns = self.step_ends_ns[first - 1] if first else 0
        rows = range(first, end)
        return Result(
            steps=end - first,
            window_ns=self.step_ends_ns[end - 1] - begin_ns,
            busy_ns={cause: sum(self.busy[row][cause] for row in rows) for cause in Bottleneck},
            waits_ns={cause: sum(self.waits[row][cause] for row in rows) for cause in Bottleneck},
            h2d_bytes=sum(self.moved[row][0] for row in rows),
            d2h_bytes=sum(self.moved[row][1] for row in rows),
        )

    # What begins now

    def _start_something(self) -> bool:
        started = self._start_compute()
        started |= self._start_h2d()
        started |= self._start_d2h()
        started |= self._start_cpu()
        return started

    def _start_compute(self) -> bool:
        if self.running is not None or self.device_update is not None:
            return False
        if self.device_updates:
            self.device_update = self.device_updates.popleft()
            self.compute_left = self.layers[self.device_update[0]].update_ns
            if self.compute_left == 0:
                self._end_compute()
            return True
        if self.at == len(self.ops) or not self._may_run(self.ops[self.at]):
            return False
        self.running = self.ops[self.at]
        self.at += 1
        if self.running.visit >= 0:
            self.visit = self.running.visit
        elif self.running.kind is Kind.BEGIN and self.visits_begun:
            self.visit += 1
        self.visits_begun |= self.running.visit >= 0
        self.compute_left = self.running.dur_ns
        if self.compute_left == 0:
            self._end_compute()
        return True

    def _may_run(self, op: Op) -> bool:
        if op.kind is Kind.STEP:
            return not self._waits_for_norm(op.step)
        if op.kind is Kind.LANDED:
            return self.flying == 0
        if op.kind is Kind.BACKWARD and self.flying > GRADIENTS_IN_FLIGHT:
            return False
        if op.load >= 0:
            return self.present[op.load]
        return op.layer < 0 or self.current[op.layer] >= op.step

    def _waits_for_norm(self, step: int) -> bool:
        """With exact clipping the step needs every gradient on the host, and then their norm."""
        return self.choice.clipping is Clipping.EXACT and self.norms <= step

    def _start_h2d(self) -> bool:
        if self.h2d is not None:
            return False
        fetch = self.next_load if self._may_fetch() else None
        if self.urgent and (fetch is None or self.urgent[0][0] < self.loads[fetch].op):
            _, layer, step, kind = heapq.heappop(self.urgent)
            size = self.layers[layer].weight_bytes if kind == "refresh" else self.layers[layer].stream_in_bytes
            self.h2d = self._transfer(size, kind, layer, step)
            return True
        if fetch is None:
            return False
        self.next_load += 1
        self.free -= 1
        load = self.loads[fetch]
        self.h2d = self._transfer(self.layers[load.layer].weight_bytes, "fetch", load.layer, load.step, fetch)
        return True

    def _may_fetch(self) -> bool:
        if self.next_load == len(self.loads) or self.free == 0:
            return False
        load = self.loads[self.next_load]
        near = load.visit <= self.visit + self.choice.prefetch and self.at > load.begins
        needed = load.op == self.at and self.running is None
        return (near or needed) and self.current[load.layer] >= load.step

    def _start_d2h(self) -> bool:
        if self.d2h is not None or not self.leaving:
            return False
        self.d2h = self.leaving.popleft()
        return True

    def _start_cpu(self) -> bool:
        if self.cpu is not None:
            return False
        if self.cpu_ready:
            _, layer, step = heapq.heappop(self.cpu_ready)
            self.cpu, self.cpu_left = ("update", layer, step), self._update_ns(layer)
        elif self._norm_is_due():
            self.cpu, self.cpu_left = ("norm", -1, self.norms), self.work.norm_ns
        else:
            return False
        if self.cpu_left == 0:
            self._end_cpu()
        return True

    def _update_ns(self, layer: int) -> int:
        update_ns = self.layers[layer].update_ns
        if self.choice.clipping is Clipping.SPECULATIVE:
            return update_ns * SPECULATIVE_COST[0] // SPECULATIVE_COST[1]
        return update_ns

    def _norm_is_due(self) -> bool:
        """The compute stream stands before the step, and every gradient is on the host."""
        if self.choice.clipping is not Clipping.EXACT or self.running is not None or self.at == len(self.ops):
            return False
        op = self.ops[self.at]
        return op.kind is Kind.STEP and self.norms == op.step and self._all_gone(op.step)

    def _all_gone(self, step: int) -> bool:
        whole = (step + 1) * self.work.micro_batches
        return all(gone >= whole for gone, leaves in zip(self.gone, self.leaves, strict=True) if leaves)

    # Time

    def _advance(self) -> None:
        h2d, d2h, links = self.h2d, self.d2h, self.links
        h2d_rate, d2h_rate = links.h2d, links.d2h
        if h2d is not None and d2h is not None and not h2d.before_ns and not d2h.before_ns:
            h2d_rate, d2h_rate = links.h2d_duplex, links.d2h_duplex
        ends = []
        computing = self.running is not None or self.device_update is not None
        if computing:
            ends.append(self.compute_left)
        if self.cpu is not None:
            ends.append(self.cpu_left)
        if h2d is not None:
            ends.append(h2d.before_ns or -(-h2d.left // h2d_rate))
        if d2h is not None:
            ends.append(d2h.before_ns or -(-d2h.left // d2h_rate))
        if not ends:
            raise AssertionError(f"the simulated run is stuck at operation {self.at} of {len(self.ops)}")
        dt = min(ends)
        self._account(dt, computing)
        self.now_ns += dt
        self.compute_left -= dt if computing else 0
        self.cpu_left -= dt if self.cpu is not None else 0
        if h2d is not None and _goes_on(h2d, dt, h2d_rate):
            self._end_h2d(h2d)
        if d2h is not None and _goes_on(d2h, dt, d2h_rate):
            self._end_d2h(d2h)
        if self.cpu is not None and self.cpu_left == 0:
            self._end_cpu()
        if computing and self.compute_left == 0:
            self._end_compute()

    def _account(self, dt: int, computing: bool) -> None:
        step = len(self.step_ends_ns)
        busy = self.busy[step]
        if computing:
            busy[Bottleneck.COMPUTE] += dt
        else:
            self.waits[step][self._cause()] += dt
        if self.h2d is not None:
            busy[Bottleneck.H2D] += dt
        if self.d2h is not None:
            busy[Bottleneck.D2H] += dt
        if self.cpu is not None:
            busy[Bottleneck.CPU_UPDATE] += dt

    def _cause(self) -> Bottleneck:
        """What the next operation waits for."""
        op = self.ops[self.at]
        if op.kind is Kind.STEP:
            return Bottleneck.CLIPPING
        if op.kind is Kind.LANDED or (op.kind is Kind.BACKWARD and self.flying > GRADIENTS_IN_FLIGHT):
            return Bottleneck.D2H
        on_link = self.h2d
        if op.load < 0:
            mine = on_link is not None and on_link.layer == op.layer
            return Bottleneck.H2D if mine else self._update_cause(op.layer, op.step)
        if on_link is not None and on_link.load == op.load:
            return Bottleneck.H2D
        load = self.loads[op.load]
        if self.current[load.layer] < load.step:
            return self._update_cause(load.layer, load.step)
        if self.free == 0:
            return Bottleneck.SLOT
        return Bottleneck.H2D if on_link is not None else Bottleneck.SLOT

    def _update_cause(self, layer: int, step: int) -> Bottleneck:
        if self.gone[layer] < step * self.work.micro_batches:
            return Bottleneck.D2H
        if self.layers[layer].placement is Placement.GPU_STREAMED:
            return Bottleneck.D2H if self.h2d is None and self.d2h is not None else Bottleneck.H2D
        waits_for_link = self.cpu is None and self.h2d is not None
        return Bottleneck.H2D if waits_for_link else Bottleneck.CPU_UPDATE

    # What ends now

    def _end_compute(self) -> None:
        if self.device_update is not None:
            layer, step = self.device_update
            self.device_update = None
            self._leave(self.layers[layer].stream_out_bytes, "state", layer, step)
            return
        op = self.running
        assert op is not None
        self.running = None
        if op.last:
            self.free += 1
        if op.kind is Kind.BACKWARD and self.leaves[op.layer]:
            self.flying += 1
            self._leave(self.layers[op.layer].gradient_bytes, "gradient", op.layer, op.step)
        if op.kind is Kind.STEP:
            self.step_ends_ns.append(self.now_ns)
            self.asked = op.step + 1
            for layer, placed in enumerate(self.layers):
                if not self.trained[layer] or placed.placement is Placement.GPU_RESIDENT:
                    self.current[layer] = op.step + 1
            waiting, self.pending = self.pending, []
            for layer, step in waiting:
                self._update_when_allowed(layer, step)

    def _leave(self, size: int, kind: str, layer: int, step: int) -> None:
        transfer = self._transfer(size, kind, layer, step, direction=1)
        if kind == "gradient" and self.sent[layer] % self.work.micro_batches:
            transfer.before_ns += self.layers[layer].accumulate_ns
        self.sent[layer] += kind == "gradient"
        self.leaving.append(transfer)

    def _end_d2h(self, transfer: _Transfer) -> None:
        self.d2h = None
        layer = transfer.layer
        if transfer.kind == "state":
            self._updated(layer, transfer.step)
            return
        self.flying -= 1
        self.gone[layer] += 1
        if self.gone[layer] == (transfer.step + 1) * self.work.micro_batches:
            self._update_when_allowed(layer, transfer.step)

    def _update_when_allowed(self, layer: int, step: int) -> None:
        during_backward = self.choice.start is UpdateStart.DURING_BACKWARD
        if self.asked <= step and not during_backward:
            self.pending.append((layer, step))
            return
        if self.layers[layer].placement is Placement.GPU_STREAMED:
            heapq.heappush(self.urgent, (self._next_use(layer, step), layer, step, "state"))
            return
        self.order += 1
        key = layer if self.choice.order is UpdateOrder.NEXT_USE else self.order
        heapq.heappush(self.cpu_ready, (step * 1_000_000_000 + key, layer, step))

    def _end_cpu(self) -> None:
        assert self.cpu is not None
        kind, layer, step = self.cpu
        self.cpu = None
        if kind == "norm":
            self.norms += 1
        elif layer in self.choice.resident:
            heapq.heappush(self.urgent, (self._next_use(layer, step), layer, step, "refresh"))
        else:
            self._updated(layer, step)

    def _end_h2d(self, transfer: _Transfer) -> None:
        self.h2d = None
        if transfer.kind == "fetch":
            self.present[transfer.load] = True
        elif transfer.kind == "refresh":
            self._updated(transfer.layer, transfer.step)
        else:
            self.device_updates.append((transfer.layer, transfer.step))

    def _updated(self, layer: int, step: int) -> None:
        self.current[layer] = step + 1

    def _next_use(self, layer: int, step: int) -> int:
        """Row of the operation that needs the layer first in the step after this one."""
        per_step = len(self.ops) // len(self.busy)
        return (step + 1) * per_step + 2 + layer

    def _transfer(self, size: int, kind: str, layer: int, step: int, load: int = -1, direction: int = 0) -> _Transfer:
        self.moved[min(len(self.step_ends_ns), len(self.moved) - 1)][direction] += size
        return _Transfer(self.links.latency_ns, size * NS, kind, layer, step, load)


def _goes_on(transfer: _Transfer, dt: int, rate: int) -> bool:
    """Let time pass for a transfer; whether it has ended."""
    if transfer.before_ns:
        transfer.before_ns -= dt
        return transfer.before_ns == 0 and transfer.left == 0
    transfer.left -= dt * rate
    return transfer.left <= 0
