"""Variables of a job's environment that advice may set, and the form of their values. Nothing else is ever set.

They come from a server, and a job's environment can make it run anything: so rules may name these alone, and the
launcher takes no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tightship_platform.errors import Invalid

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
"""Settings of torch's allocator, `key:value` joined by commas. Source: https://pytorch.org/docs/stable/notes/cuda.html."""
NEWER_ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""Its newer name, which torch reads, too: what a user set there is kept in step."""
TF32 = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""1: float32 matrix products may use TF32, as after `torch.set_float32_matmul_precision("high")`. Source: torch's
aten/src/ATen/Context.cpp."""

_SETTING = r"[a-z0-9_]{1,64}:[A-Za-z0-9.]{1,32}"
FORMS = {ALLOCATOR: re.compile(rf"{_SETTING}(,{_SETTING}){{0,9}}"), TF32: re.compile("[01]")}


def check_overlay(variables: Mapping[str, str]) -> None:
    """Accept variables that advice may set.

    :raises Invalid: another name, or a value of another form.
    """
    for name, value in variables.items():
        form = FORMS.get(name)
        if form is None:
            raise Invalid("Variable to set", name, f"one of {', '.join(FORMS)}")
        if not form.fullmatch(value):
            raise Invalid(f"Value of {name}", value, f"one that matches {form.pattern}")


def with_overlay(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The environment with the variables; of the allocator's settings, those that are not named stay."""
    merged = {**environ, **variables}
    for name in (ALLOCATOR, NEWER_ALLOCATOR):
        if ALLOCATOR in variables and environ.get(name):
            named = {setting.partition(":")[0] for setting in variables[ALLOCATOR].split(",")}
            kept = [one for one in environ[name].split(",") if one.partition(":")[0].strip() not in named]
            merged[name] = ",".join([*kept, variables[ALLOCATOR]])
    return merged
