"""Two ranks with a window each, against torch's DistributedDataParallel without one: the same to the bit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Model, differences  # noqa: E402
from offload_machines import chosen  # noqa: E402

import tightship_offload as offload  # noqa: E402

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).parents[2] / "support" / "offload_ranks.py"


@pytest.mark.machines
def test_two_ranks(tmp_path: Path, warm: tuple[str, ...]) -> None:
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    kind = chosen()
    command = [*warm, str(PROGRAM), str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank), kind], env=environ) for rank in range(2)]
    try:
        assert [rank.wait(200) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    found = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert len(found[0]) == 9
    for name in found[0]:
        results = [rank[name] for rank in found]
        for rank in found:
            assert differences(rank[f"{name.split()[0]} ddp"], rank[name]) == [], name
        shared = [{k: v for k, v in result.items() if k.startswith(("model", "optimizer"))} for result in results]
        # Running means of a batch norm are each rank's own after the last forward.
        assert [name for name in differences(*shared) if "running" not in name] == []
        assert differences(*results) != [], "the ranks had data of their own"
    refused = (tmp_path / "refused0").read_text()
    assert "DistributedDataParallel is not needed" in refused


def test_a_wrapped_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = torch.nn.parallel.DistributedDataParallel.__new__(torch.nn.parallel.DistributedDataParallel)
    torch.nn.Module.__init__(wrapped)
    wrapped.module = Model()
    with pytest.raises(offload.OffloadError, match=r"give it the module inside \(model\.module\)"):
        offload.apply(wrapped, torch.optim.AdamW(wrapped.parameters()), window=2)
