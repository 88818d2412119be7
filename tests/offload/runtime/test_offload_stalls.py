"""What a step waited for, where the host runs ahead of the device: by timing events, in the device's own time."""

from __future__ import annotations

from typing import Any

import pytest
from waiting import PATIENCE_S

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_async import AsyncBackend  # noqa: E402
from offload_exactness import Model  # noqa: E402
from offload_loops import adamw, batch, loss_of, plain_step  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.runtime import stalls  # noqa: E402
from tightship_offload.runtime.stats import OffloadStats  # noqa: E402

pytestmark = pytest.mark.torch


def steps(copy_ns_per_byte: float, **options: Any) -> tuple[list[OffloadStats], int]:
    """The figures of four steps, and the bytes of a layer."""
    found: list[OffloadStats] = []
    torch.manual_seed(0)
    with AsyncBackend(prompt={}, deadline_s=PATIENCE_S, copy_ns_per_byte=copy_ns_per_byte).computing() as backend:
        model = Model()
        optimizer = adamw(model.parameters())
        offload.apply(model, optimizer, backend=backend, **{"window": 2} | options)
        engine = offload.engine_of(model)
        engine.on_step.append(found.append)
        for _ in range(4):
            plain_step(model, optimizer)
        return found, engine.layers[0].size_bytes


def test_a_slow_link_shows_as_the_wait_that_it_is() -> None:
    slow, size_bytes = steps(1000.0)
    copies_ns = slow[-1].fetches * size_bytes * 1000
    assert 0.6 * copies_ns < slow[-1].wait_h2d_ns + slow[-1].wait_slot_ns < copies_ns
    assert slow[-1].wait_d2h_ns > 0.8 * size_bytes * 1000, "the last layer's gradients, after all computation"
    assert 0.9 * copies_ns < slow[-1].wait_ns < 1.1 * copies_ns, "the device does little else"
    fast, _ = steps(0.0)
    assert fast[-1].wait_ns < 0.01 * copies_ns


def test_what_the_device_waits_for_is_told_a_step_later() -> None:
    first, second = steps(1000.0)[0][:2]
    assert first.wait_h2d_ns == 0 and first.h2d_bytes > 0
    assert second.wait_h2d_ns > 0


def test_a_loop_without_steps_piles_no_events_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "MOST", 8)
    torch.manual_seed(0)
    with AsyncBackend(prompt={}, deadline_s=PATIENCE_S, copy_ns_per_byte=1000.0).computing() as backend:
        model = Model()
        offload.apply(model, adamw(model.parameters()), backend=backend, window=2)
        engine = offload.engine_of(model)
        for _ in range(20):
            with torch.no_grad():
                float(loss_of(model, batch()))
        assert engine._counting.fetches > 5 * stalls.MOST
        assert engine._counting.wait_h2d_ns > 0
        assert len(engine._stalls._now) + len(engine._stalls._before) < 3 * stalls.MOST
