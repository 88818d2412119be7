"""How often the fleet's accounts, findings and opportunities are brought up to date."""

from __future__ import annotations

from tightship_platform.tasks.registry import TaskModule

TASKS = TaskModule(
    module="tightship_analyzers.fleet.tasks",
    periods_s={
        "tightship_analyzers.account_runs": 10.0,
        "tightship_analyzers.rank_opportunities": 10.0,
        "tightship_analyzers.judge_samples": 15.0,
        "tightship_analyzers.verify_applications": 15.0,
    },
)
