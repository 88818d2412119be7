"""What cannot be done is said in one line, at the right moment, and nothing hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import VOCABULARY, Block, Model  # noqa: E402
from offload_loops import adamw, batch, loss_of, plain_step  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.base import Limits  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend, host_free_bytes  # noqa: E402
from tightship_offload.errors import OffloadError  # noqa: E402
from tightship_offload.plan.model import Nvme, OptimizerPlan, Plan, Window  # noqa: E402
from tightship_offload.runtime.apply import describe  # noqa: E402
from tightship_offload.runtime.blocks import find_blocks  # noqa: E402
from tightship_offload.runtime.engine import has_engine  # noqa: E402

pytestmark = pytest.mark.torch


def windowed(model: nn.Module | None = None, **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = model or Model()
    options = {"window": 2, "backend": CpuBackend(deadline_s=PATIENCE_S)} | options
    return offload.apply(model, adamw(model.parameters()), **options)


def refused(call: Callable[[], object], match: str) -> None:
    with pytest.raises(OffloadError, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)


# ---- at apply --------------------------------------------------------------------------------------------------------


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Bilinear(2, 2, 2)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"layers": "layers.*"}, r"No module of Model matches .*; repeated blocks: blocks\.\* \(5 x Block\)"),
        ({"layers": ["blocks.*", "blocks.0.up"]}, r"Layer 'blocks\.0\.up' is inside layer 'blocks\.0'"),
        ({"resident": [7]}, r"resident has layer 7; Model has layers 0 to 4 \(blocks\.0 to blocks\.4\)"),
        ({"window": 1}, "window is 1 with 5 layers that move; expected at least 2"),
        ({"window": None}, "neither a plan nor a window"),
        ({"prefetch": -1}, "prefetch is -1; expected 0 or more"),
        ({"model": Other()}, r"Other has no repeated blocks .* \(its children: Bilinear, Linear\)"),
        ({"plan": "no/such/plan.yaml", "window": None}, r"no/such/plan\.yaml"),
        ({"plan": "plan.yaml"}, "a plan and a window by hand; give one of the two"),
    ],
)  # fmt: skip
def test_a_wish_that_cannot_be(options: dict[str, Any], match: str) -> None:
    refused(lambda: windowed(**options), match)


def test_layers_that_are_all_one_and_the_same() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(8, 8), *(nn.Sequential(shared) for _ in range(4)))
    refused(lambda: find_blocks(model, ["1", "2", "3", "4"]), r"share all their parameters")


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_an_optimizer_that_needs_all_at_once(kind: Any) -> None:
    model = Model()
    refused(
        lambda: offload.apply(model, kind(model.parameters()), window=2), f"{kind.__name__} cannot update one layer"
    )


class Counting(torch.optim.SGD):
    """Keeps how often it has stepped in its groups, as schedule-free optimizers do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        super().step()


class OnGpuOnly(torch.optim.SGD):
    """As 8-bit optimizers are."""

    def step(self, closure: Any = None) -> None:
        if not all(p.is_cuda for group in self.param_groups for p in group["params"]):
            raise ValueError("expected\nCUDA tensors")


def unchanged_after(call: Callable[[], object], match: str, model: nn.Module) -> None:
    """It is refused, and the model is as it was."""
    before = {name: (p.data_ptr(), p.dtype, p._version) for name, p in model.named_parameters()}
    refused(call, match)
    assert {name: (p.data_ptr(), p.dtype, p._version) for name, p in model.named_parameters()} == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("make_optimizer", "match"),
    [
        (lambda p: Counting(p, lr=0.1), "Counting keeps 'count' in its parameter groups"),
        (
            lambda p: OnGpuOnly(p, lr=0.1),
            r"OnGpuOnly cannot update .* host memory \(ValueError: expected CUDA",
        ),
        (lambda p: torch.optim.AdamW(p, capturable=True), "AdamW cannot .* host memory .*If capturable=True"),
    ],
)
def test_an_optimizer_that_could_not_update_in_host_memory(make_optimizer: Any, match: str) -> None:
    model = Model()
    optimizer = make_optimizer(model.parameters())
    kind, groups = type(optimizer), [dict(group) for group in optimizer.param_groups]
    seed = torch.get_rng_state()
    unchanged_after(lambda: offload.apply(model, optimizer, window=2), match, model)
    assert type(optimizer) is kind and not optimizer.state
    assert [dict(group) for group in optimizer.param_groups] == groups
    assert torch.get_rng_state().equal(seed)


def test_parameters_that_have_no_values() -> None:
    with torch.device("meta"):
        model = Model()
    refused(
        lambda: windowed(model), r"'embedding.weight' is on the meta device and has no values; load the whole model"
    )
    model = Model()
    model.register_buffer("cache", torch.empty(3, device="meta"))
    unchanged_after(lambda: windowed(model), "'cache' is on the meta device", model)


def test_parameters_that_were_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = Model()
    refused(lambda: windowed(model), r"'embedding.weight' was made in torch.inference_mode\(\) and cannot be trained")


def test_parameters_that_processes_share() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = Model()
        model.blocks[2].down = nn.Parameter(distribute_tensor(model.blocks[2].down.detach(), mesh))
        unchanged_after(lambda: windowed(model), r"'blocks.2.down' is a DTensor.* before fully_shard", model)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("which", range(1, 11))
def test_host_memory_that_cannot_be_had_half_way(which: int) -> None:
    """Weights and gradients of all layers are there before anything points to them."""

    class Full(CpuBackend):
        asked = 0

        def host_buffer(self, size_bytes: int) -> Tensor:
            self.asked += 1
            if self.asked == which:
                raise OffloadError("Cannot pin 1 MiB of host memory")
            return super().host_buffer(size_bytes)

    model = Model()
    unchanged_after(lambda: windowed(model, backend=Full()), "Cannot pin", model)


def test_gradients_have_their_memory_before_the_first_backward() -> None:
    class Counted(CpuBackend):
        asked = 0

        def host_buffer(self, size_bytes: int) -> Tensor:
            self.asked += 1
            return super().host_buffer(size_bytes)

    machine = Counted()
    model, optimizer = windowed(backend=machine)
    before = machine.asked
    plain_step(model, optimizer)
    assert machine.asked == before


def test_files_need_room_for_gradients_alone(tmp_path: Path) -> None:
    count = sum(p.numel() for p in Model().blocks.parameters())

    class Small(CpuBackend):
        def limits(self) -> Limits:
            return Limits(device_bytes=None, host_bytes=6 * count, pinned_bytes=None)

    refused(lambda: windowed(backend=Small()), "Host memory is too small")
    model, optimizer = windowed(backend=Small(), nvme=offload.NvmeTier(folder=tmp_path))
    plain_step(model, optimizer)


def test_blocks_that_are_used_without_being_called() -> None:
    class Aside(Block):
        def run(self, x: Tensor) -> Any:
            return super().forward(x)

    class ByMethod(Model):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block.run(x)
            return self.head(x)

    model = ByMethod()
    model.blocks = nn.ModuleList(Aside() for _ in range(3))
    model, _ = windowed(model)
    before = [p.detach().clone() for p in model.parameters()]
    refused(
        lambda: loss_of(model, batch()).backward(), r"Layer 'blocks\.2' gets a gradient and no layer was ever called"
    )
    assert all(p.equal(old) for p, old in zip(model.parameters(), before, strict=True))


def test_a_host_that_is_too_small() -> None:
    class Small(CpuBackend):
        def limits(self) -> Limits:
            return Limits(device_bytes=None, host_bytes=10_000, pinned_bytes=None)

    model = Model()
    before = {name: (p.data_ptr(), p.clone()) for name, p in model.named_parameters()}
    refused(lambda: windowed(model, backend=Small()), r"Host memory is too small: gradients .* GiB that are free")
    assert all(p.data_ptr() == before[n][0] and p.equal(before[n][1]) for n, p in model.named_parameters())
    assert not model._forward_hooks and not model.blocks[0]._forward_pre_hooks
    assert (host_free_bytes() or 0) > 2**20


def plan_for(model: nn.Module, **changes: Any) -> Plan:
    spec = describe(model, find_blocks(model, "blocks.*"))
    return Plan(model=spec, **{"window": Window(slots=3, prefetch=1, resident=(1,))} | changes)


def test_a_plan_is_applied_and_one_for_another_model_is_refused() -> None:
    model, optimizer = windowed(window=None, plan=plan_for(Model()))
    plain_step(model, optimizer)
    engine = offload.engine_of(model)
    assert [layer.index for layer in engine.layers] == [0, 2, 3, 4]
    other = Model(layers=4)
    refused(
        lambda: windowed(window=None, plan=plan_for(other)),
        "The plan is for another model: .* 4 layers, this model has 5; make a plan for",
    )


def test_a_plan_that_asks_for_more_than_there_is() -> None:
    model = Model()
    some = {"nvme": Nvme(folder="/nowhere", layers=(0,), weights=True)}
    refused(lambda: plan_for(model, **some), "name all layers that move in nvme.layers and set nvme.weights")
    streamed = {"optimizer": OptimizerPlan(gpu_streamed=(0,))}
    refused(lambda: plan_for(model, **streamed), "optimizer.gpu_streamed lists layers, which this runtime does not do")


def test_an_optimizer_whose_step_somebody_has_replaced() -> None:
    model = Model()
    optimizer = adamw(model.parameters())
    optimizer.step = print
    refused(lambda: offload.apply(model, optimizer, window=2), "step of this AdamW was replaced by <built-in function")


def test_a_model_that_has_an_engine_already() -> None:
    model, optimizer = windowed()
    refused(lambda: offload.apply(model, optimizer, window=3), "has an offload engine already; remove it first")


# ---- later -----------------------------------------------------------------------------------------------------------


def test_parameters_that_are_moved_or_replaced_afterwards() -> None:
    model, optimizer = windowed()
    plain_step(model, optimizer)
    model.to("cpu")
    model.float()
    plain_step(model, optimizer)
    kept = model.blocks[3].up.weight
    model.blocks[3].up.weight = nn.Parameter(torch.zeros(32, 16))
    refused(lambda: model(batch()), "Parameter 'weight' of layer 'blocks.3' was replaced or moved after apply")
    model.blocks[3].up.weight = kept
    plain_step(model, optimizer)
    model.double()
    refused(lambda: model(batch()), "of layer 'blocks.0' was replaced or moved after apply")


def test_weights_changed_between_forward_and_backward() -> None:
    model, optimizer = windowed()
    plain_step(model, optimizer)
    loss = loss_of(model, batch())
    plain_step(model, optimizer)
    refused(loss.backward, r"The weights of layer 'blocks\.\d' were changed between forward and backward")
    plain_step(model, optimizer)
    loss = loss_of(model, batch())
    with torch.no_grad():
        model.blocks[1].down.mul_(2)
    refused(loss.backward, "The weights of layer 'blocks.1' were changed between forward and backward")


def test_a_second_derivative() -> None:
    model, optimizer = windowed()
    with pytest.warns(UserWarning, match="create_graph=True"):
        refused(
            lambda: loss_of(model, batch()).backward(create_graph=True), "create_graph=True reaches layer 'blocks.4'"
        )
    plain_step(model, optimizer)


class Leaky(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), self.gain


def test_a_block_that_returns_its_parameter() -> None:
    class LeakyModel(Model):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            for block in self.blocks:
                x, _ = block(x)
            return self.head(x)

    model = LeakyModel()
    model.blocks = nn.ModuleList(Leaky() for _ in range(3))
    model, _ = windowed(model)
    refused(lambda: model(batch()), "Layer 'blocks.0' returns one of its own parameters.* make layer 0 resident")


def test_sparse_gradients() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(VOCABULARY, 4, sparse=True) for _ in range(3))

        def forward(self, tokens: Tensor) -> Tensor:
            return torch.stack([table(tokens) for table in self.tables]).sum()

    model, _ = windowed(Tables())
    refused(lambda: model(batch()).backward(), r"A gradient of layer 'tables\.\d' is sparse")


class FailsLater(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        if any(p.numel() > 4096 for group in self.param_groups for p in group["params"]):
            raise ValueError("no\nway")


def test_an_update_that_fails() -> None:
    model = nn.Sequential(*(nn.Linear(80, 80) for _ in range(3)))
    optimizer = FailsLater(model.parameters(), lr=0.1)
    offload.apply(model, optimizer, window=2)
    model(torch.ones(1, 80)).sum().backward()
    optimizer.step()
    match = r"the update of layer '0' has failed with ValueError: no way"
    refused(lambda: model(torch.ones(1, 80)), match)
    refused(lambda: float(model[0].weight.norm()), match)
    refused(optimizer.state_dict, match)


def test_every_wait_has_an_end_that_names_what_it_waits_for() -> None:
    goes_on = threading.Event()
    goes_on.set()

    class Stuck(CpuBackend):
        def before_work(self, lane: str) -> None:
            if lane == "update":
                goes_on.wait(PATIENCE_S)

    machine = Stuck(deadline_s=PATIENCE_S)
    model, optimizer = windowed(backend=machine)
    plain_step(model, optimizer)
    model(batch())
    goes_on.clear()
    loss_of(model, batch()).backward()
    optimizer.step()
    machine.deadline_s = 0.3
    refused(
        lambda: model(batch()),
        r"Waited 0\.3 s for: (layer 'blocks\.0' .* which waits for: )?the update of layer 'blocks\.0'",
    )
    goes_on.set()


@pytest.mark.parametrize(("of_plan", "of_call", "counts"), [(None, None, 300), (7, None, 7), (7, 9.5, 9.5)])
def test_how_long_a_wait_may_take_is_said_by_the_plan_or_the_call(
    of_plan: float | None, of_call: float | None, counts: float
) -> None:
    model = Model()
    plan = Plan(model=describe(model, find_blocks(model)), window=Window(slots=2), deadline_s=of_plan)
    offload.apply(model, adamw(model.parameters()), plan, deadline_s=of_call)
    assert offload.engine_of(model).backend.deadline_s == counts
    offload.engine_of(model).remove()


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan"), float("inf"), "soon"])
def test_a_deadline_that_is_none(deadline_s: Any) -> None:
    model = Model()
    given = {"window": 2, "deadline_s": deadline_s}
    refused(
        lambda: offload.apply(model, adamw(model.parameters()), **given), "deadline_s is .*; expected a number from 1"
    )
    assert not has_engine(model)


def test_asking_for_an_engine_that_is_not_there() -> None:
    refused(lambda: offload.engine_of(Model()), "This Model has no offload engine; call tightship_offload.apply first")
