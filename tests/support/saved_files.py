"""What trainers leave in their folders, as flat tables that can be compared to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

KINDS = (".pt", ".pth", ".pkl", ".ckpt", ".safetensors")


def contents(where: Path, *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every value in a file, or in every file with tensors under a folder, by file and place.

    `but`: parts of names to leave out.
    """
    found: dict[str, Any] = {}
    for path in [where] if where.is_file() else sorted(where.rglob("*")):
        if path.suffix in KINDS:
            found |= dict(_flat(_load(path), str(path.relative_to(where))))
    assert found, f"nothing was saved in {where}"
    return {name: value for name, value in found.items() if not any(part in name for part in but)}


def different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of what is not the same to the bit."""
    names = [*one, *(name for name in other if name not in one)]
    return [name for name in names if name not in one or name not in other or not _same(one[name], other[name])]


def _load(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, weights_only=False)


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _flat(item, f"{name}/{number}")
    elif not callable(value):
        yield name, value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _bytes(a).equal(_bytes(b))
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    return type(a) is type(b) and bool(a == b)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)
