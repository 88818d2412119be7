"""The machine that this process runs on, and whether a plan was made for it."""

from __future__ import annotations

import torch

from tightship_offload.errors import PlanError
from tightship_offload.plan.host_limits import cores, read_host_limits
from tightship_offload.plan.model import Machine, Plan, hardware_differences


def this_machine() -> Machine:
    """The device that this process would use, else the CPU in its role, and the host."""
    host_bytes = read_host_limits().capacity or 0
    if not torch.cuda.is_available():
        return Machine(device="cpu", device_bytes=host_bytes, host_bytes=host_bytes, cores=cores())
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Machine(device=properties.name, device_bytes=properties.total_memory, host_bytes=host_bytes, cores=cores())


def check_machine(plan: Plan) -> None:
    """See whether a plan was made for a machine like this one; one made by hand fits every machine.

    :raises PlanError: it was not; the line names the differences.
    """
    if plan.hardware is None:
        return
    differences = hardware_differences(plan.hardware, this_machine())
    if differences:
        raise PlanError(f"The plan is for another machine: {'; '.join(differences)}; make a plan on this one")
