"""How often planning requests that were left are taken up."""

from __future__ import annotations

from tightship_platform.tasks.registry import TaskModule

TASKS = TaskModule(
    module="tightship_analyzers.offload_planner.tasks",
    periods_s={
        "tightship_analyzers.sweep_plan_requests": 5.0,
    },
)
