"""One defect per rule, put into an opened stretch of time; each says how much of the stretch it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from injection.communication_defects import bucketed, exposed, slow_link, tiny
from injection.device_defects import (
    biased,
    cast,
    converted,
    decoded,
    dispatched,
    filled,
    odd_sizes,
    one_by_one,
    pageable,
    returned,
    single_precision,
    singly,
    slow,
    small_grid,
    spelt_out,
    unfused,
    zeroed,
)
from injection.host_defects import (
    COLLECTIONS,
    COPIES,
    FLUSHES,
    LOGS,
    READS,
    SIZED,
    WAITS,
    WAITS_FOR_ALL,
    Put,
    allocated,
    blocked,
    compiled,
    computed,
    loaded,
    looped,
    marked,
    paused,
    saved,
)

WAIT = (0.25, 0.4)
"""Share of the step that a block with a wait takes; about half of it is the wait's fault."""


@dataclass(frozen=True)
class Defect:
    """How a rule is put to the test."""

    rule: str
    put: Put
    per_step: int = 2
    """Stretches opened in each step."""
    share: tuple[float, float] = (0.12, 0.25)
    """Share of the step that is put in, at least and at most."""
    also: frozenset[str] = field(default_factory=frozenset)
    """Rules that are right about the same stretch too."""
    on_cpu: bool = False
    """Fits recordings without a device as well."""
    least_ns: int = 0
    """A stretch must be as long to hold it."""

    @property
    def right_too(self) -> frozenset[str]:
        """Blocks end with a synchronization that is there in fact."""
        return self.also | {"explicit-synchronization"}

    def goes_with(self, other: Defect) -> bool:
        """Each of the two has its own stretches that no rule on the other one claims too."""
        mine, its = self.also | {self.rule}, other.also | {other.rule}
        return not mine & its and "explicit-synchronization" not in mine | its


DEFECTS: tuple[Defect, ...] = (
    Defect("starved-input", loaded, 1, on_cpu=True),
    Defect("synchronous-checkpoint", saved, 1, on_cpu=True),
    Defect(
        "synchronous-scalar-read",
        blocked(("cudaMemcpy", "hipMemcpyWithStream", *WAITS), READS, "Memcpy DtoH (Device -> Pageable)"),
        share=WAIT,
    ),
    Defect("data-dependent-shape", blocked(WAITS, SIZED), share=WAIT),
    Defect("explicit-synchronization", blocked(WAITS_FOR_ALL), share=WAIT),
    Defect("allocator-churn", allocated),
    Defect("cache-flush", paused(*FLUSHES), on_cpu=True),
    Defect("garbage-collection", paused(*COLLECTIONS), on_cpu=True),
    Defect("logging-in-step", paused(*LOGS), on_cpu=True),
    Defect("recompilation", compiled, on_cpu=True),
    Defect("busy-host", computed, 1, share=(0.2, 0.35), least_ns=1_200_000),
    Defect("loop-indexing", looped, 1, share=(0.2, 0.35), on_cpu=True),
    Defect("pageable-copy", pageable),
    Defect(
        "synchronous-copy",
        blocked(WAITS, COPIES, "Memcpy DtoH (Device -> Pinned)", bytes_=1 << 16),
        share=WAIT,
    ),
    Defect("fill-then-copy", filled, also=frozenset(["pageable-copy"])),
    Defect("device-round-trip", returned, also=frozenset(["pageable-copy", "synchronous-copy"])),
    Defect("zero-grad-memset", zeroed, 1),
    Defect("dtype-ping-pong", cast),
    Defect("layout-ping-pong", converted),
    Defect("launch-bound", dispatched),
    Defect("unfused-elementwise", unfused),
    Defect("fp32-gemm", single_precision),
    Defect("unaligned-half-dims", odd_sizes, also=frozenset(["slow-kernel"])),
    Defect("unfused-attention", spelt_out),
    Defect("conv-bias-before-batch-norm", biased),
    Defect("low-grid", small_grid),
    Defect("slow-kernel", slow, least_ns=100_000),
    Defect("small-decode-batch", decoded, share=(0.16, 0.25), least_ns=200_000),
    Defect("batches-of-one", singly, 1, share=(0.2, 0.35), least_ns=300_000),
    Defect("exposed-communication", exposed, share=(0.14, 0.2)),
    Defect("tiny-collectives", tiny, 1, also=frozenset(["exposed-communication"])),
    Defect("redundant-copy", bucketed),
    Defect("low-bus-bandwidth", slow_link, also=frozenset(["exposed-communication"])),
    Defect("gloo-on-gpu", marked("gloo:all_reduce", "gloo:broadcast", "gloo:all_gather", "gloo:reduce_scatter")),
    Defect("data-parallel", marked("DataParallel.forward")),
    Defect("single-tensor-optimizer", one_by_one, 1),
)
"""Of the rules on one trace. `straggling-rank` is put to the test by ranks.py, `device-held-idle` by held.py."""
