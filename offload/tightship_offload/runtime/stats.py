"""What a step cost: time, what was waited for, what was moved."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True, kw_only=True)
class OffloadStats:
    """One optimizer step, from the end of the last `optimizer.step()` to the end of this one.

    On a GPU waits are the device's own, those of the step before: see [Note: stalls] in stalls.py.
    """

    step: int = 0
    step_ns: int = 0
    wait_h2d_ns: int = 0
    """The computation waited for a layer's weights on their way to the device."""
    wait_update_ns: int = 0
    """It waited for a layer's update by the optimizer."""
    wait_slot_ns: int = 0
    """It waited until a slot's last use was over."""
    wait_d2h_ns: int = 0
    """It waited for gradients on their way to the host."""
    h2d_bytes: int = 0
    d2h_bytes: int = 0
    fetches: int = 0
    """Layers copied to the device."""
    misses: int = 0
    """Of these, how many were asked for only when they were needed."""
    update_ns: int = 0
    """Time the update lane worked, beside the computation or not."""
    in_one_pass: int = 0
    """Layers whose last update took one pass over memory where torch's takes several."""

    @property
    def wait_ns(self) -> int:
        """All waits together."""
        return self.wait_h2d_ns + self.wait_update_ns + self.wait_slot_ns + self.wait_d2h_ns

    def as_dict(self) -> dict[str, int]:
        """For a record or JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
