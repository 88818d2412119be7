"""How often the platform's own tasks are started."""

from __future__ import annotations

from tightship_platform.tasks.registry import TaskModule

TASKS = TaskModule(
    module="tightship_platform.tasks.periodic",
    periods_s={
        "tightship_platform.sweep_captures": 5.0,
        "tightship_platform.request_scheduled_captures": 10.0,
        "tightship_platform.close_lost_runs": 15.0,
        "tightship_platform.roll_up": 30.0,
        "tightship_platform.make_partitions": 3600.0,
        "tightship_platform.remove_old_records": 3600.0,
        "tightship_platform.remove_old_files": 3600.0,
        "tightship_platform.remove_old_runs": 3600.0,
        "tightship_platform.finish_removals": 30.0,
    },
)
