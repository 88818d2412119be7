"""What torch does not offer to everybody, in one place: each has a test that says what we rely on."""

from __future__ import annotations

from torch import Tensor, UntypedStorage

HAS_SWAP = hasattr(UntypedStorage, "_swap_data_ptr_")
"""Older torch cannot; torch 2.13 can (pytorch/pytorch#177449)."""


def move_block(source: Tensor, target: Tensor) -> None:
    """The memory of one tensor's storage becomes another's; views of either see it. Contents do not count.

    If the target has memory, the two change theirs. Where torch cannot swap, the memory goes back to the device's
    allocator, which is asked for as much again.
    """
    mine, other = source.untyped_storage(), target.untyped_storage()
    if HAS_SWAP:
        other._swap_data_ptr_(mine)  # type: ignore[attr-defined]
        return
    sizes = mine.nbytes(), other.nbytes()
    mine.resize_(sizes[1])
    other.resize_(sizes[0])
