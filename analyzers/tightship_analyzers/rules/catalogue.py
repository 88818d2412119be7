"""All rules, in the open."""

from __future__ import annotations

import hashlib
from difflib import get_close_matches
from functools import cache

from tightship_analyzers.findings.model import AnyRule, RankRule, RunRule, TraceRule
from tightship_analyzers.rules.communication import (
    data_parallel,
    exposed_communication,
    gloo_on_gpu,
    low_bus_bandwidth,
    straggling_rank,
    tiny_collectives,
)
from tightship_analyzers.rules.host import (
    allocator_churn,
    busy_host,
    cache_flush,
    data_dependent_shape,
    explicit_synchronization,
    garbage_collection,
    logging_in_step,
    loop_indexing,
    recompilation,
    single_tensor_optimizer,
    starved_input,
    synchronous_checkpoint,
    synchronous_scalar_read,
)
from tightship_analyzers.rules.kernels import (
    batches_of_one,
    conv_bias_before_batch_norm,
    fp32_gemm,
    launch_bound,
    low_grid,
    slow_kernel,
    small_decode_batch,
    unaligned_half_dims,
    unfused_attention,
    unfused_elementwise,
)
from tightship_analyzers.rules.memory import (
    device_round_trip,
    dtype_ping_pong,
    fill_then_copy,
    layout_ping_pong,
    pageable_copy,
    redundant_copy,
    synchronous_copy,
    zero_grad_memset,
)
from tightship_analyzers.rules.runs import device_held_idle, model_near_memory_limit, out_of_memory_run
from tightship_platform import __version__
from tightship_platform.errors import NotFound

GROUPS: dict[str, tuple[AnyRule, ...]] = {
    "The host keeps the device waiting": (
        starved_input.RULE,
        synchronous_checkpoint.RULE,
        synchronous_scalar_read.RULE,
        data_dependent_shape.RULE,
        explicit_synchronization.RULE,
        allocator_churn.RULE,
        cache_flush.RULE,
        garbage_collection.RULE,
        logging_in_step.RULE,
        recompilation.RULE,
        busy_host.RULE,
        loop_indexing.RULE,
        single_tensor_optimizer.RULE,
    ),
    "Memory is moved or filled for nothing": (
        pageable_copy.RULE,
        synchronous_copy.RULE,
        fill_then_copy.RULE,
        device_round_trip.RULE,
        zero_grad_memset.RULE,
        dtype_ping_pong.RULE,
        layout_ping_pong.RULE,
        redundant_copy.RULE,
    ),
    "The device computes less than it could": (
        launch_bound.RULE,
        unfused_elementwise.RULE,
        fp32_gemm.RULE,
        unaligned_half_dims.RULE,
        unfused_attention.RULE,
        conv_bias_before_batch_norm.RULE,
        low_grid.RULE,
        slow_kernel.RULE,
        small_decode_batch.RULE,
        batches_of_one.RULE,
    ),
    "Ranks wait for each other": (
        exposed_communication.RULE,
        tiny_collectives.RULE,
        low_bus_bandwidth.RULE,
        gloo_on_gpu.RULE,
        data_parallel.RULE,
        straggling_rank.RULE,
    ),
    "Devices are held and not used": (device_held_idle.RULE,),
    "A device's memory is not enough": (out_of_memory_run.RULE, model_near_memory_limit.RULE),
}
"""What goes wrong → the rules on it."""

RULES: tuple[AnyRule, ...] = tuple(rule for group in GROUPS.values() for rule in group)

TRACE_RULES: tuple[TraceRule, ...] = tuple(rule for rule in RULES if isinstance(rule, TraceRule))
RANK_RULES: tuple[RankRule, ...] = tuple(rule for rule in RULES if isinstance(rule, RankRule))
RUN_RULES: tuple[RunRule, ...] = tuple(rule for rule in RULES if isinstance(rule, RunRule))


@cache
def catalogue_version() -> str:
    """Version of the analyzers and of all rules' pages: findings of another one may differ."""
    pages = "\n".join(f"{rule.id}\n{rule.page}" for rule in RULES)
    return f"{__version__}-{hashlib.sha256(pages.encode()).hexdigest()[:12]}"


HEADINGS = ("What it finds", "Why it costs", "Example", "Use instead", "Known misses", "Source")
"""Sections of every rule's page."""


def find_rule(rule_id: str) -> AnyRule:
    """The rule of this name.

    :raises NotFound: there is none.
    """
    for rule in RULES:
        if rule.id == rule_id:
            return rule
    near = get_close_matches(rule_id.lower(), [rule.id for rule in RULES], n=1)
    said = f"did you mean {near[0]}? " if near else ""
    raise NotFound("rule", rule_id, f"{said}`tightship rules` lists them")
