"""Models that fit nowhere: counted without storage, in their own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tightship_analyzers.offload_planner.counted import CannotCount, _profile, count, profile_of_factory
from tightship_analyzers.offload_planner.profile import Origin
from tightship_offload.plan.model import Dtype, HardwareSpec, Recompute

pytestmark = pytest.mark.torch

HARDWARE = HardwareSpec(
    device="NVIDIA H200",
    device_bytes=149 * 10**9,
    host_bytes=128 * 10**9,
    cores=16,
    h2d_bytes_per_s=55e9,
    d2h_bytes_per_s=55e9,
    h2d_duplex_bytes_per_s=45e9,
    d2h_duplex_bytes_per_s=45e9,
    adam_params_per_s={16: 4e9},
    device_adam_params_per_s=1.2e11,
    flops_per_s=4e14,
)
FACTORY = """
import torch
from torch import nn

print("a factory may print")

def make():
    torch.set_default_dtype(torch.bfloat16)
    def block():
        return nn.Sequential(nn.Linear(8192, 32768, bias=False), nn.GELU(), nn.Linear(32768, 8192, bias=False))

    blocks = [block() for _ in range(20)]
    model = nn.Sequential(nn.Embedding(50000, 8192), nn.Sequential(*blocks), nn.Linear(8192, 50000, bias=False))
    return model, torch.randint(50000, (4, 512)), lambda logits: logits.float().logsumexp(-1).mean()

def broken():
    raise ValueError("no\\nsuch thing")

def unlike():
    return nn.Bilinear(2, 2, 2), (torch.rand(1, 2), torch.rand(1, 2))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_eleven_billion_parameters_are_counted(here: Path) -> None:
    profile = profile_of_factory("factory:make", HARDWARE)
    weights, tokens = 2 * 8192 * 32768, 4 * 512
    assert profile.model.layer_parameters == (weights,) * 20
    assert profile.model.rest_parameters == 2 * 50000 * 8192
    assert (profile.batch, profile.tokens, profile.origin) == (4, tokens, Origin.COUNTED)
    assert (profile.precision.weights, profile.precision.master) == (Dtype.BF16, Dtype.FP32)
    forward_ns = round(2 * weights * tokens / 4e14 * 1e9)
    for layer in profile.layers:
        assert (layer.forward_ns, layer.backward_ns) == (forward_ns, 2 * forward_ns)
        assert layer.input_bytes == tokens * 8192 * 2
        # the input, what GELU gets and what it gives
        assert layer.activation_bytes == tokens * (8192 + 2 * 32768) * 2
    assert profile.rest.after_forward_ns == round(2 * 50000 * 8192 * tokens / 4e14 * 1e9)


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_computed_again_keep_and_cost_what_they_would_otherwise(reentrant: bool) -> None:
    """The planner adds the forward that backward repeats."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, checkpoints: bool) -> None:
            super().__init__()
            self.first = nn.Embedding(500, 64)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(64, 256, bias=False), nn.GELU(), nn.Linear(256, 64, bias=False))
                for _ in range(4)
            )
            self.last = nn.Linear(64, 500, bias=False)
            self.checkpoints = checkpoints

        def forward(self, tokens: Any) -> Any:
            x = self.first(tokens)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant) if self.checkpoints else block(x)
            return self.last(x)

    def profile(checkpoints: bool) -> Any:
        record = count(lambda: (Checkpointed(checkpoints), torch.randint(500, (4, 32))))
        return _profile(record, HARDWARE, flops_per_s=1e9)

    plain, found = profile(checkpoints=False), profile(checkpoints=True)
    assert (plain.recompute, found.recompute) == (Recompute.NONE, Recompute.LAYER)
    assert (found.layers, found.rest) == (plain.layers, plain.rest)
    assert plain.layers[0].activation_bytes == 4 * 32 * (64 + 2 * 256) * 4


@pytest.mark.sliced(2)
@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("factory:broken", "ValueError: no such thing"),
        ("absent:make", "No module named 'absent'"),
        ("factory:unlike", "has no repeated blocks"),
    ],
)
def test_what_cannot_be_counted_is_one_line(here: Path, factory: str, said: str) -> None:
    with pytest.raises(CannotCount) as caught:
        profile_of_factory(factory, HARDWARE)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
