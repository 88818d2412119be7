"""Sums of squares of gradients, in one pass over memory and on all threads.

[Note: norms] torch takes the norm of a tensor in host memory on one thread, in fp32. Where gradients are large, ours
adds them up in pieces, of which each thread takes the next, and the pieces in fp64 in their order: the result depends
on no thread, and the norm lies within `NORM_ERROR_FRAC` of the exact one. Small gradients are left to torch, as are
those on a device, whose own kernel does it. Once a loop has clipped large ones, the sums of each layer that moves are
taken as its gradients leave the device, in the last backward of a step; they count until somebody touches a parameter
of the layer (see [Note: pending parameters]), so that clipping itself reads no gradient again.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tightship_offload.runtime.native import native
from tightship_offload.runtime.one_pass import FORMATS, has_fp16

LARGE = 1 << 20
"""Numbers in host memory for which threads are worth their start."""
NORM_ERROR_FRAC = 2e-6
"""Most by which a norm of ours differs from the exact one."""


class _Row(ctypes.Structure):
    """`Row` of native.cpp."""

    _fields_ = (("data", ctypes.c_void_p), ("count", ctypes.c_int64), ("format", ctypes.c_int32))


def has_squares(tensor: Tensor) -> bool:
    """Whether `squares` is for this tensor: plain numbers of a format that it knows, without gaps."""
    return (
        tensor.layout is torch.strided
        and not hasattr(tensor, "device_mesh")
        and tensor.dtype in FORMATS
        and (tensor.dtype is not torch.float16 or has_fp16())
        and (tensor.is_contiguous() or _is_dense(tensor))
    )


def _is_dense(tensor: Tensor) -> bool:
    order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)
    return tensor.permute(order).is_contiguous()


def is_large(tensors: Sequence[Tensor]) -> bool:
    """Whether so many numbers are in host memory that our norm is worth its start."""
    return sum(tensor.numel() for tensor in tensors if tensor.device.type == "cpu") >= LARGE


def squares(tensors: Sequence[Tensor], threads: int) -> list[float] | None:
    """The sum of squares of each tensor; None: there is nothing here that does it.

    :param tensors: in host memory, for which `has_squares` holds.
    """
    library = native().library
    if library is None:
        return None
    rows = (_Row * len(tensors))(*(_Row(one.data_ptr(), one.numel(), FORMATS[one.dtype]) for one in tensors))
    sums = (ctypes.c_double * len(tensors))()
    if library.tightship_squares(rows, len(tensors), sums, threads):
        return None
    return list(sums)


def total_norm(tensors: Sequence[Tensor], known: Mapping[int, float | Tensor] | None = None) -> Tensor | None:
    """The norm of all numbers of all tensors, fp32; None: take torch's.

    :param known: by address, sums of squares of some tensors.
    """
    host = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    if not is_large(tensors) or not all(has_squares(tensor) for tensor in host):
        return None
    known = known or {}
    given = {tensor.data_ptr() for tensor in host if tensor.numel() and tensor.data_ptr() in known}
    found = squares([tensor for tensor in host if tensor.data_ptr() not in given], torch.get_num_threads())
    if found is None:
        return None
    device = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    for place in {tensor.device for tensor in device}:
        there = [tensor for tensor in device if tensor.device == place]
        norms = torch._foreach_norm(there, 2, dtype=torch.float32)
        found.append(float(torch.stack(norms).double().square().sum()))
    arrived = [known[address] for address in given]
    found += [one for one in arrived if not isinstance(one, Tensor)]
    if there := [one for one in arrived if isinstance(one, Tensor)]:
        found.append(float(torch.stack(there).double().sum()))  # one wait for all
    return torch.tensor(math.sqrt(math.fsum(found)), dtype=torch.float32, device=tensors[0].device)
