"""The cases of offload_h200.py: the model, the recipe, and what each way of offloading makes of them."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

WARM_UP, TIMED = 3, 8
LOSS_CHUNK = 2048
"""Tokens whose logits exist at one time."""
LEARNING_RATE = 1e-4

Step = Callable[[Tensor, Tensor], Tensor]
"""(ids, targets), both (batch, context) → the loss, after the whole step."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model and a batch."""

    layers: int
    width: int
    context: int
    tokens: int
    """Of a step."""
    vocabulary: int
    dtype: str

    def of(self, **changes: Any) -> Shape:
        """The same with other numbers."""
        return replace(self, **changes)

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        with torch.device("meta"):
            return sum(p.numel() for p in GPT(self).parameters())


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 128)
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Its forward returns the loss, in chunks."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.token(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        parts = zip(self.norm(x).flatten(0, 1).split(LOSS_CHUNK), targets.flatten().split(LOSS_CHUNK), strict=True)
        summed = [checkpoint(self._loss, part, wanted, use_reentrant=False) for part, wanted in parts]
        return torch.stack(summed).sum() / targets.numel()

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x).float(), targets, reduction="sum")


def make(shape: Shape, device: str = "cpu") -> GPT:
    """The same weights for every case; in host memory first, as a model that fits nowhere is made."""
    with torch.device("meta"):
        model = GPT(shape).to(getattr(torch, shape.dtype))
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)
            else:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return model.to(device)


class MasterAdamW(torch.optim.AdamW):
    """AdamW on fp32 copies of 16-bit weights, as all parts of a mixed precision recipe do it."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = list(model.parameters())
        self.masters = [nn.Parameter(p.detach().float()) for p in self.weights]
        super().__init__(self.masters, lr=LEARNING_RATE, fused=True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
            weight.grad = None
        super().step(closure)
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = None
            weight.copy_(master)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)


def loop_of(model: nn.Module, optimizer: Any) -> Step:
    """An ordinary step."""

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = model(ids, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def no_offload(shape: Shape, device: str, folder: Path, cap: int | None) -> tuple[Step, dict[str, Any]]:
    """Everything on the device. Its layers are timed first, for the plan."""
    from tightship_offload.job.probe import Probe

    model = make(shape, device)
    low = shape.dtype != "float32"
    records: list[dict[str, Any]] = []
    probed = loop_of(model, optimizer := adamw(model))
    probe = Probe(model, optimizer, 3, records.append)
    for number in range(20):
        probed(*batch(shape, device, number))
        if records:
            break
    record_file(folder, shape).write_text(json.dumps(records[0]))
    del model, optimizer, probed, probe
    model = make(shape, device)
    return loop_of(model, MasterAdamW(model) if low else adamw(model)), {"masters": "fp32" if low else "–"}


def tightship(shape: Shape, device: str, folder: Path, cap: int | None) -> tuple[Step, dict[str, Any]]:
    """By a plan from the steps that were measured without offload, else from counted work."""
    import tightship_offload as offload
    from tightship_analyzers.offload_planner.constraints import Constraints
    from tightship_analyzers.offload_planner.measured import profile_of
    from tightship_analyzers.offload_planner.plans import make_plan
    from tightship_offload.plan.model import Dtype, HardwareSpec, Precision, Recompute

    hardware = HardwareSpec.from_mapping(yaml.safe_load((folder / "hardware.yaml").read_text()), "hardware")
    record = record_file(folder, shape)
    if record.is_file():
        profile = profile_of(json.loads(record.read_text()), hardware)
    else:
        profile = counted(shape, hardware)
    low = shape.dtype != "float32"
    if low:
        # The steps were timed with AdamW in bf16; beside masters its state is fp32, twice as large.
        precision = Precision(weights=Dtype.BF16, master=Dtype.FP32, gradients=Dtype.BF16)
        state = 2 * profile.state_bytes_per_parameter if record.is_file() else profile.state_bytes_per_parameter
        profile = replace(profile, precision=precision, state_bytes_per_parameter=state)
    constraints = Constraints(device_bytes=cap, recompute=Recompute.LAYER, micro_batches=1)
    plan = make_plan(profile, hardware, constraints).plan
    model = make(shape)
    model, optimizer = offload.apply(model, adamw(model), plan)
    assert plan.prediction is not None
    predicted = {
        "step_ms": plan.prediction.step_ns.value / 1e6,
        "device_bytes": plan.prediction.device_bytes,
        "host_bytes": plan.prediction.host_bytes,
        "bottleneck": plan.prediction.bottleneck,
        "from": str(profile.origin),
    }
    window = {"slots": plan.window.slots, "resident": len(plan.window.resident)}
    return loop_of(model, optimizer), {"masters": "fp32" if low else "–", "predicted": predicted, "window": window}


def counted(shape: Shape, hardware: Any) -> Any:
    """The profile of a model that was measured nowhere."""
    from tightship_analyzers.offload_planner.counted import profile_of_factory

    os.environ["TIGHTSHIP_BENCHMARK_SHAPE"] = json.dumps(shape.__dict__)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return profile_of_factory(f"{Path(__file__).stem}:factory", hardware)


def factory() -> Any:
    """(model, batch, loss) for `counted`, called with tensors that have no storage."""
    shape = Shape(**json.loads(os.environ["TIGHTSHIP_BENCHMARK_SHAPE"]))
    rows = max(1, shape.tokens // shape.context)
    ids = torch.zeros(rows, shape.context, dtype=torch.long)
    torch.set_default_dtype(getattr(torch, shape.dtype))
    return GPT(shape), (ids, ids), lambda loss: loss


def one_rank(device: str) -> None:
    """The process group of one that some peers need."""
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "29511")
    if device == "cuda":
        torch.cuda.set_device(0)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")


def deepspeed_zero3(shape: Shape, device: str, folder: Path, cap: int | None) -> tuple[Step, dict[str, Any]]:
    """Weights, gradients and optimizer state in pinned host memory, updated by its CPU Adam."""
    import deepspeed  # type: ignore[import-not-found]

    one_rank(device)
    place = {"device": "cpu", "pin_memory": device == "cuda"}
    low = shape.dtype != "float32"
    config = {
        "train_micro_batch_size_per_gpu": shape.tokens // shape.context,
        "bf16": {"enabled": low},
        "zero_optimization": {"stage": 3, "offload_optimizer": place, "offload_param": place, "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": 0.01}},
    }
    model = make(shape)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = engine(ids, targets)
        engine.backward(loss)
        engine.step()
        return loss

    return step, {"masters": "fp32" if low else "–"}


def fsdp2(shape: Shape, device: str, folder: Path, cap: int | None) -> tuple[Step, dict[str, Any]]:
    """fp32 weights, gradients and state in host memory; weights become bf16 on their way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    one_rank(device)
    mesh = init_device_mesh(device, (1,))
    model = make(shape).float()
    low = shape.dtype != "float32"
    options: dict[str, Any] = {"mesh": mesh, "offload_policy": CPUOffloadPolicy(pin_memory=device == "cuda")}
    if low:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=getattr(torch, shape.dtype))
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return loop_of(model, adamw(model)), {"masters": "fp32" if low else "–"}


def torchao(shape: Shape, device: str, folder: Path, cap: int | None) -> tuple[Step, dict[str, Any]]:
    """16-bit weights on the device, gradients and state of the same format in host memory."""
    from torchao.optim import CPUOffloadOptimizer  # type: ignore[import-not-found]

    model = make(shape, device)
    optimizer = CPUOffloadOptimizer(
        model.parameters(), torch.optim.AdamW, offload_gradients=True, lr=LEARNING_RATE, fused=True
    )
    return loop_of(model, optimizer), {"masters": "none"}


Make = Callable[[Shape, str, Path, int | None], tuple[Step, dict[str, Any]]]
CASES: dict[str, Make] = {
    "no offload": no_offload,
    "tightship": tightship,
    "DeepSpeed ZeRO-3 offload": deepspeed_zero3,
    "FSDP2 CPUOffloadPolicy": fsdp2,
    "torchao CPUOffloadOptimizer": torchao,
}
NEEDS = {
    "DeepSpeed ZeRO-3 offload": "pip install deepspeed",
    "torchao CPUOffloadOptimizer": "pip install torchao",
}


def record_file(folder: Path, shape: Shape) -> Path:
    """Where the steps without offload are kept, by model and batch."""
    return folder / f"record-{shape.layers}-{shape.width}-{shape.tokens}.json"


def batch(shape: Shape, device: str, number: int) -> tuple[Tensor, Tensor]:
    """(ids, targets) of a step, each (batch, context)."""
    source = torch.Generator().manual_seed(number)
    rows = max(1, shape.tokens // shape.context)
    drawn = torch.randint(shape.vocabulary, (rows, shape.context + 1), generator=source).to(device)
    return drawn[:, :-1], drawn[:, 1:]


def run_case(case: str, shape: dict[str, Any], cap_bytes: int | None, folder: str) -> dict[str, Any]:
    """Train one case in this process; `missing` where its library is not installed."""
    given = Shape(**shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    if on_gpu and cap_bytes is not None:
        torch.cuda.set_per_process_memory_fraction(cap_bytes / torch.cuda.get_device_properties(0).total_memory)
    try:
        step, about = CASES[case](given, device, Path(folder), cap_bytes)
    except ModuleNotFoundError as error:
        if case not in NEEDS:
            raise
        return {"missing": f"not installed: {NEEDS[case]}", "lacking": error.name}
    spent, losses, allocations = [], [], 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for number in range(WARM_UP + TIMED):
        ids, targets = batch(given, device, number)
        begun = time.perf_counter()
        loss = step(ids, targets)
        losses.append(loss.item())
        if on_gpu:
            torch.cuda.synchronize()
            if number == 1:
                allocations = torch.cuda.memory_stats()["num_device_alloc"]
        spent.append(time.perf_counter() - begun)
    step_s = statistics.median(spent[WARM_UP:])
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return about | {
        "step_ms": step_s * 1e3,
        "steps_ms": [seconds * 1e3 for seconds in spent],
        "tokens_per_s": given.tokens / step_s,
        "device_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "host_bytes": host,
        "new_allocations": torch.cuda.memory_stats()["num_device_alloc"] - allocations if on_gpu else None,
        "losses": losses,
    }
