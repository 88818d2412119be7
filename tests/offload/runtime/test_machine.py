"""A plan for another machine is refused where it would be applied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tightship_offload.errors import PlanError
from tightship_offload.plan.model import HardwareSpec, ModelSpec, Plan, Window

pytestmark = pytest.mark.torch


def plan(**changes: object) -> Plan:
    from tightship_offload.runtime.machine import this_machine

    rates = dict.fromkeys(
        ("h2d_bytes_per_s", "d2h_bytes_per_s", "h2d_duplex_bytes_per_s", "d2h_duplex_bytes_per_s"), 1e9
    )
    hardware = HardwareSpec(**this_machine().as_mapping() | changes, **rates, adam_params_per_s={1: 1e9})
    return Plan(model=ModelSpec(name="Net", layer_parameters=(1, 1)), window=Window(slots=2), hardware=hardware)


def test_a_plan_of_this_machine_or_of_none_fits() -> None:
    from tightship_offload.runtime.machine import check_machine

    check_machine(plan())
    check_machine(replace(plan(), hardware=None))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "NVIDIA H200"}, "the plan is for a 'NVIDIA H200', this machine has a "),
        ({"cores": 10_000}, "the plan counts on 10000 cores, this machine has "),
        ({"host_bytes": 2**50}, "the plan counts on 1048576.0 GiB of host memory, this machine allows "),
    ],
)
def test_what_differs_is_named(changes: dict[str, object], said: str) -> None:
    from tightship_offload.runtime.machine import check_machine

    with pytest.raises(PlanError) as caught:
        check_machine(plan(**changes))
    assert said in str(caught.value)
    assert str(caught.value).startswith("The plan is for another machine: ")
    assert "\n" not in str(caught.value)


def test_applying_it_in_a_script_is_refused_before_anything_changes() -> None:
    import torch
    from offload_exactness import Model

    import tightship_offload as offload
    from tightship_offload.runtime.apply import describe
    from tightship_offload.runtime.blocks import find_blocks

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ours = replace(plan(), model=describe(model, find_blocks(model)))
    with pytest.raises(PlanError, match="The plan is for another machine: the plan counts on 10000 cores"):
        offload.apply(model, optimizer, replace(ours, hardware=plan(cores=10_000).hardware))
    assert type(optimizer) is torch.optim.SGD
    offload.apply(model, optimizer, ours)
    offload.engine_of(model).remove()
