"""Products in half precision whose sizes 16 bytes do not divide, by their sizes and the name of their kernel."""

from __future__ import annotations

import re
from functools import lru_cache

from tightship_analyzers.facts.kernels.matrix_products import Product

MULTIPLE = 8
"""Elements of half precision in 16 bytes."""
HALF = frozenset(("c10::Half", "c10::BFloat16", "Half", "BFloat16", "half", "bfloat16"))
READS_SINGLY = re.compile(r"(align|ldg)[124](?!\d)")
"""Kernels of CUTLASS and cuBLAS that read less than 16 bytes of half precision at once."""
READS_WHOLE = re.compile(r"(align|ldg)(8|16)(?!\d)|^(void )?sm(90|1\d\d)_|^nvjet_")
"""Those that read 16 bytes; from Hopper on they read by tensor maps, whose strides are multiples of 16 bytes.
Source: CUDA Driver API, `cuTensorMapEncodeTiled`."""


def is_unaligned(product: Product, kernel: str) -> bool:
    """Does the kernel read what 16 bytes do not divide?"""
    odd = [size > 1 and size % MULTIPLE > 0 for size in (product.m, product.k, product.n)]
    if product.dtype not in HALF or not any(odd) or _matches(READS_WHOLE, kernel):
        return False
    return any(odd if _matches(READS_SINGLY, kernel) else odd[1:])


@lru_cache(maxsize=4096)
def _matches(pattern: re.Pattern[str], kernel: str) -> bool:
    return pattern.search(kernel) is not None
