"""Which modules of a model are its layers: by pattern, or the repeated blocks that can be seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from tightship_offload.errors import OffloadError
from tightship_offload.plan.model import CLASSES_SHOWN, are_blocks, no_blocks


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """One layer: a module whose parameters come and go together."""

    name: str
    module: nn.Module
    parameters: tuple[nn.Parameter, ...]
    """Those that are the module's alone. What is tied to something outside of it stays on the device."""


def find_blocks(model: nn.Module, layers: str | Sequence[str] | None = None) -> list[Block]:
    """The layers of a model in the order in which it registers them.

    :param layers: patterns of module names in which `*` stands for one part, such as `transformer.h.*`; None: found.
    :raises OffloadError: no such module, none repeated, one inside another, or none with a parameter of its own.
    """
    names = _matching(model, [layers] if isinstance(layers, str) else layers) if layers else _repeated(model)
    modules = dict(model.named_modules())
    for name in names:
        inside = next((other for other in names if name.startswith(f"{other}.")), None)
        if inside is not None:
            raise OffloadError(f"Layer {name!r} is inside layer {inside!r}; name only one of them in layers")
    owners = Counter(
        id(parameter) for owner in _owners(modules, names) for parameter in {id(p): p for p in owner}.values()
    )
    blocks = [
        Block(
            name=name,
            module=modules[name],
            parameters=tuple(p for p in modules[name].parameters() if owners[id(p)] == 1),
        )
        for name in names
    ]
    own = [block for block in blocks if block.parameters]
    if not own:
        raise OffloadError(
            f"The {len(blocks)} layers of {type(model).__name__} share all their parameters; expected layers that "
            "have some of their own: nothing would move"
        )
    return own


def _owners(modules: dict[str, nn.Module], names: list[str]) -> list[list[nn.Parameter]]:
    """The parameters of each layer, and of all that is outside of layers as one."""
    inside = {id(module) for name in names for module in modules[name].modules()}
    rest = [p for m in modules.values() if id(m) not in inside for p in m.parameters(recurse=False)]
    return [*(list(modules[name].parameters()) for name in names), rest]


def _matching(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    names = [name for name, _ in model.named_modules() if name]
    found: dict[str, None] = {}
    for pattern in patterns:
        parts = [re.escape(part).replace(r"\*", "[^.]*") for part in pattern.split(".")]
        wanted = re.compile(r"\.".join(parts))
        matches = [name for name in names if wanted.fullmatch(name)]
        if not matches:
            raise OffloadError(
                f"No module of {type(model).__name__} matches layers={pattern[:80]!r}; "
                f"repeated blocks: {_stacks(model)}"
            )
        found.update(dict.fromkeys(matches))
    return [name for name in names if name in found]


def _repeated(model: nn.Module) -> list[str]:
    """Children of the outermost containers whose children are repeated blocks."""
    found: list[str] = []
    for name, children in _containers(model):
        if not any(name.startswith(f"{layer}.") or name == layer for layer in found):
            found.extend(children)
    if not found:
        raise OffloadError(no_blocks(type(model).__name__, (type(m).__name__ for m in model.children())))
    return found


def _containers(model: nn.Module) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            prefix = f"{name}." if name else ""
            children = {f"{prefix}{key}": child for key, child in module.named_children() if list(child.parameters())}
            if are_blocks([type(child) for child in children.values()]):
                found.append((name, list(children)))
    return found


def _stacks(model: nn.Module) -> str:
    modules = dict(model.named_modules())
    said = [
        f"{name + '.' if name else ''}* ({len(children)} x {type(modules[children[0]]).__name__})"
        for name, children in _containers(model)
    ]
    return ", ".join(said[:CLASSES_SHOWN]) + (", ..." if len(said) > CLASSES_SHOWN else "") if said else "none"
