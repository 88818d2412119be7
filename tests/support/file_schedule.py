"""Which process runs which test file, and when, where several of them run the tests (`pytest -n … --dist loadfile`).

A file stays in one process, so that what its tests share is started once, and so do files that share a browser, a
server or a Python that has imported torch. What takes longest comes first: in the end no process waits for another.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

TOGETHER = {
    "tests/browser": ("tests/browser/",),
    "tests/dashboard": ("tests/dashboard/",),
    "tests/offload": ("tests/offload/job/", "tests/offload/runtime/"),
    "tests/analyzers": (
        "tests/analyzers/analysis/test_second_pass.py",
        "tests/analyzers/facts/test_recording.py",
        "tests/analyzers/offload_planner/test_offload_of_workflow.py",
        "tests/analyzers/offload_planner/test_offload_traced.py",
        "tests/analyzers/rules/test_gpu_pairs.py",
    ),
}
"""What stays in one process: beginnings of names of files. Any other file is for itself."""

SECONDS = {
    "tests/browser": 200,
    "tests/offload": 150,
    "tests/platform/test_guides.py": 150,
    "tests/collectors/kineto/test_kineto_captures.py": 110,
    "tests/platform/tasks/test_worker_hangs.py": 70,
    "tests/platform/test_first_fleet.py": 60,
    "tests/collectors/launch/test_launch_signals.py": 60,
    "tests/collectors/inject/test_inject_torch.py": 60,
    "tests/collectors/inject/test_exit_guard.py": 60,
    "tests/contracts/test_broker_contract.py": 60,
    "tests/platform/commands/test_commands_server.py": 50,
    "tests/contracts/test_retention_contract.py": 40,
    "tests/offload/integrations/test_trainers_without_edits.py": 40,
    "tests/collectors/agent/test_agent_torch.py": 40,
    "tests/platform/commands/test_commands_up.py": 40,
    "tests/platform/tasks/test_celery_app.py": 40,
    "tests/collectors/kineto/test_kineto_recording.py": 40,
    "tests/collectors/agent/test_agent.py": 30,
    "tests/collectors/kineto/test_capture_exit.py": 30,
    "tests/collectors/launch/test_job_ending.py": 30,
    "tests/collectors/commands/test_profile.py": 30,
    "tests/contracts/test_trace_files_contract.py": 30,
    "tests/contracts/test_rollups_contract.py": 30,
    "tests/contracts/test_store_owner_contract.py": 30,
    "tests/platform/commands/test_commands_tls.py": 30,
    "tests/analyzers/rules/test_proof.py": 30,
    "tests/analyzers/fleet/test_captured_ranks.py": 30,
    "tests/dashboard": 30,
    "tests/analyzers": 20,
    "tests/collectors/launch/test_launch.py": 20,
    "tests/collectors/launch/test_launch_delivery.py": 20,
    "tests/collectors/inject/test_inject.py": 20,
    "tests/collectors/doctor/test_doctor.py": 20,
    "tests/contracts/test_plan_request_contract.py": 20,
    "tests/contracts/test_schema_contract.py": 20,
    "tests/offload/integrations/test_huggingface.py": 20,
    "tests/offload/integrations/test_lightning.py": 20,
    "tests/platform/api/test_silent_database.py": 20,
    "tests/platform/api/test_hostile_requests.py": 20,
    "tests/platform/commands/test_commands_check.py": 20,
    "tests/platform/processes/test_compose.py": 20,
}
"""About how long they take beside others. The order is what counts, and the rest takes less."""
PER_TEST_S = 0.1


class FileSchedule(LoadScopeScheduling):
    """Gives whole files to the processes, those first that take longest."""

    def _split_scope(self, nodeid: str) -> str:
        """What a test stays together with."""
        for scope, beginnings in TOGETHER.items():
            if nodeid.startswith(beginnings):
                return scope
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a process what takes longest of what is left."""
        longest = max(self.workqueue, key=lambda scope: SECONDS.get(scope, PER_TEST_S * len(self.workqueue[scope])))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
