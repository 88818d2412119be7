"""The asynchronous backend of the tests: late, ordered by events alone, and the same numbers as torch without it."""

from __future__ import annotations

import mmap
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_async import KERNEL_NS, AsyncBackend  # noqa: E402
from offload_exactness import Case, Training, differences, everything, make, reference, train, windowed  # noqa: E402  # noqa: E402
from offload_streams import Event, Streams  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from tightship_offload.backends.base import COMPUTE, Backend, CopyOut  # noqa: E402

pytestmark = pytest.mark.torch
NEVER: dict[str, float] = {}
"""No stream is prompt."""


def late(**options: Any) -> AsyncBackend:
    return AsyncBackend(deadline_s=PATIENCE_S, **{"prompt": NEVER} | options)


def test_what_was_not_waited_for_is_full_of_nan() -> None:
    with late().computing() as backend:
        y = torch.ones(3) * 2
        assert backend.streams.ran == 0
        assert [bool(value != value) for value in y.tolist()] == [True] * 3  # torch reads that past all operators
        assert float(y.sum()) == 6.0  # a number is waited for
        assert y.tolist() == [2.0] * 3


def test_a_copy_is_over_when_its_event_is() -> None:
    with late().computing() as backend:
        source, home = torch.ones(4) + 1, backend.host_buffer(16).view(torch.float32)
        home.fill_(7)  # the host's own, at once
        home.copy_(source, non_blocking=True)
        event = backend.record()
        assert home.tolist() == [7.0] * 4
        assert event is not None and backend.finish(event, PATIENCE_S)
        assert home.tolist() == [2.0] * 4


def test_a_copy_reads_the_host_s_memory_when_it_runs() -> None:
    with late().computing() as backend:
        home, there = backend.host_buffer(4).view(torch.float32), backend.device_buffer(4).view(torch.float32)
        home.fill_(1)
        there.copy_(home, non_blocking=True)
        home.fill_(2)  # which nobody has ordered after the copy
        assert float(there) == 2.0


def test_a_mapped_file_is_the_host_s_memory_and_a_copy_into_it_is_over_when_it_returns(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(16))
    with late().computing(), path.open("r+b") as file:
        mapped = torch.frombuffer(mmap.mmap(file.fileno(), 16), dtype=torch.float32)
        mapped.copy_(torch.ones(4) + 1)
        assert path.read_bytes() == struct.pack("4f", 2, 2, 2, 2)


@pytest.mark.parametrize("ordered", [False, True])
def test_streams_are_ordered_by_events_alone(ordered: bool) -> None:
    """Of two streams the second one writes what the first one reads."""
    seen = set()
    for seed in range(20):
        streams, done = Streams(seed), []
        try:
            for _ in range(5):
                streams.issue("first", lambda done=done: done.append("read"))
            if ordered:
                streams.wait("second", streams.record("first"))
            streams.issue("second", lambda done=done: done.append("written"))
            for name in ("first", "second"):
                assert streams.finish(streams.record(name), PATIENCE_S)
            seen.add(done.index("written"))
        finally:
            streams.close()
    assert seen == {5} if ordered else len(seen) > 2


def test_a_stream_that_is_prompt_does_its_work_at_once_and_what_that_waits_for() -> None:
    streams, done = Streams(0, {"copies": 1.0}), []
    try:
        streams.issue("kernels", lambda: done.append("kernel"))
        event = streams.record("kernels")
        streams.issue("kernels", lambda: done.append("another kernel"))
        streams.wait("copies", event)
        streams.issue("copies", lambda: done.append("copy"))
        assert "copy" in done and done.index("kernel") < done.index("copy")
    finally:
        streams.close()


def test_work_that_fails_is_raised_by_every_wait_that_follows() -> None:
    streams = Streams(0, NEVER)
    try:
        streams.issue("kernels", lambda: 1 / 0)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Work on a stream has failed: division by zero"):
                streams.finish(streams.record("kernels"), PATIENCE_S)
    finally:
        streams.close()


def test_a_wait_for_what_never_comes() -> None:
    streams = Streams(0, NEVER)
    try:
        streams.wait("kernels", Event("copies"))
        with pytest.raises(RuntimeError, match="wait for one another"):
            streams.finish(streams.record("kernels"), PATIENCE_S)
    finally:
        streams.close()


def test_events_know_the_device_s_time() -> None:
    with late(copy_ns_per_byte=10.0).computing() as backend:
        home, there = backend.host_buffer(400), backend.device_buffer(400)
        begun = backend.record_timed()
        there.copy_(home, non_blocking=True)
        there.add_(1)
        ended = backend.record_timed()
        assert begun is not None and ended is not None
        assert backend.elapsed_ns(begun, ended) is None
        backend.synchronize(COMPUTE)
        assert backend.elapsed_ns(begun, ended) == 4000 + KERNEL_NS


@pytest.mark.parametrize("seed", range(2))
def test_a_training_without_the_engine_is_the_same(seed: int) -> None:
    """Operators of every kind: in place, random, on lists of tensors, recomputed, with views and with numbers read."""
    training = Training(clipping=True, accumulation=2, checkpointing="non-reentrant", tied=True)
    expected = reference(training, 3)
    with AsyncBackend(seed=seed).computing():
        model, optimizer = make(training)
        found = everything(model, optimizer, train(model, optimizer, training, 3))
    assert differences(expected, found) == []


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.gru = nn.GRU(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        x, _ = self.gru(x.transpose(1, 2))
        best, at = x.max(dim=1)
        chosen = x[(at > 2).any(1)] if bool((at > 2).any()) else x[:, 0]
        return torch.cat([best.flatten(), chosen.flatten().cumsum(0)]).logsumexp(0) + x.std()


def test_other_operators_are_the_same() -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(3)
        model = Mixed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 3, 9))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in model.parameters()), *model.buffers()]

    with late().computing():
        found = run()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, run(), strict=True))


@pytest.mark.parametrize("kind", ["cpu", "async"])
def test_gradients_that_are_added_and_those_that_are_not_arrive_in_their_order(kind: str) -> None:
    from offload_machines import machine

    chance = random.Random(5)
    with machine(kind) as backend:
        homes = [backend.host_buffer(40).view(torch.float32) for _ in range(4)]
        expected = [torch.zeros(10) for _ in homes]
        for home in homes:
            home.zero_()
        sent: list[tuple[int, Tensor, bool]] = []
        for _ in range(12):
            at, value, adds = (
                chance.randrange(4),
                torch.full((10,), float(chance.randrange(100))),
                chance.random() < 0.7,
            )
            sent.append((at, value, adds))
        held = [(at, value + 0, adds) for at, value, adds in sent]  # on the device
        _sent(backend, [CopyOut(value, homes[at], adds) for at, value, adds in held])
    for at, value, adds in sent:
        expected[at] = expected[at] + value if adds else value
    assert [home.tolist() for home in homes] == [one.tolist() for one in expected]


def test_the_next_gradient_is_on_its_way_while_one_is_added_and_buffers_are_made_once() -> None:
    class Counting(AsyncBackend):
        sent = waited = buffers = 0
        most = 0

        def host_buffer(self, size_bytes: int) -> Tensor:
            self.buffers += 1
            return super().host_buffer(size_bytes)

        def record(self) -> Event | None:
            self.sent += 1
            return super().record()

        def finish(self, device_event: Event, deadline_s: float) -> bool:
            self.most = max(self.most, self.sent - self.waited)
            self.waited += 1
            return super().finish(device_event, deadline_s)

    with Counting(prompt=NEVER, deadline_s=PATIENCE_S).computing() as backend:
        homes = [backend.host_buffer(4 * n).view(torch.float32) for n in (1, 10, 3)]
        backend.buffers = 0
        for _ in range(3):
            backend.copy_out([CopyOut(torch.ones(home.numel()) + 0, home.zero_(), True) for home in homes], 40)
        assert [home.tolist() for home in homes] == [[1.0] * home.numel() for home in homes]
    assert (backend.most, backend.buffers) == (2, 2)


def test_memory_that_another_stream_reads_has_to_be_held_until_then() -> None:
    for held in (True, False):
        with late().computing() as backend:
            home, source = backend.host_buffer(12).view(torch.float32), torch.ones(3) + 1
            home.zero_()
            kept = [source] if held else []

            def copy(source: Tensor = source, home: Tensor = home) -> None:
                home.copy_(source, non_blocking=True)

            lane = backend.lane("d2h")
            mark = lane.submit("a copy", copy, (backend.mark("before"),))
            lane.submit("another piece of work", lambda: None).issued.wait(PATIENCE_S)
            del source, copy
            backend.reach(mark, COMPUTE, on_host=True)
            assert [value == 2.0 for value in home.tolist()] == [held] * 3
            kept.clear()


def _sent(backend: Backend, copies: list[CopyOut]) -> None:
    lane = backend.lane("d2h")
    mark = lane.submit("copies", lambda: backend.copy_out(copies, 40), (backend.mark("before"),))
    backend.reach(mark, COMPUTE, on_host=True)


def test_the_forward_is_issued_without_waiting_for_the_device() -> None:
    """A wait on the host where one on the stream would do costs all overlap, and no number shows it."""
    with late().computing() as backend:
        from offload_loops import adamw, batch

        import tightship_offload as offload

        model, _ = make(Training())
        offload.apply(model, adamw(model.parameters()), window=2, backend=backend)
        before = backend.streams.ran
        model(batch())
        assert backend.streams.ran == before


def test_files_hold_what_the_device_has_computed(tmp_path: Path) -> None:
    import tightship_offload as offload

    training = Training(clipping=True)
    steps = 3
    with late().computing() as backend:
        model, optimizer = make(training)
        tier = offload.NvmeTier(folder=tmp_path)
        offload.apply(model, optimizer, window=2, resident=(1,), nvme=tier, backend=backend)
        train(model, optimizer, training, steps)
        offload.engine_of(model).remove()
    again, state = make(training)
    tier = offload.NvmeTier(folder=tmp_path, resume=True)
    offload.apply(again, state, window=2, resident=(1,), nvme=tier)
    assert offload.engine_of(again).steps_done == steps
    expected = reference(training, steps)
    found = everything(again, state, [])
    kept = {name for name in expected if name.startswith(("model.", "optimizer."))}
    assert differences({name: expected[name] for name in kept}, {name: found[name] for name in kept}) == []


def test_a_case_of_the_product() -> None:
    case = Case(training=Training(clipping=True), window=2, resident=(0,), seed=4)
    found, _, ledger = windowed(case, 6, kind="async")
    assert differences(reference(case.training, 6), found) == []
    assert ledger.accesses and not ledger.races
