"""torch.compile over a window: it goes around what brings a layer, and the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_loops import plain_step, same  # noqa: E402

pytestmark = pytest.mark.torch


def whole(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager")


def each_block(model: Any) -> Any:
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return model


@pytest.mark.parametrize("compile_it", [whole, each_block])
def test_compiled_after_apply(compile_it: Callable[[Any], Any]) -> None:
    captured = []

    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Any]:
        start()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = compile_it(model)
        losses = [plain_step(compiled, optimizer).detach() for _ in range(4)]
        captured.append(torch._dynamo.utils.counters["stats"]["calls_captured"])
        return losses

    same(loop)
    assert min(captured) >= 20  # a block's operations
