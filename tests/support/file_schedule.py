"""Which process runs which test file, and when, where several of them run the tests (`pytest -n … --dist loadfile`).

A file stays in one process, so that what its tests share is started once, and so do files that share a browser, a
server or a Python that has imported torch. What takes longest comes first: in the end no process waits for another.
"""

from __future__ import annotations

from typing import Any

from file_costs import known
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

PER_TEST_S = 0.1
"""Where costs are not known."""


class FileSchedule(LoadScopeScheduling):
    """Gives whole files to the processes, those first that take longest."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._costs_s = known()

    def _split_scope(self, nodeid: str) -> str:
        """What a test stays together with."""
        for scope, beginnings in TOGETHER.items():
            if nodeid.startswith(beginnings):
                return scope
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a process what takes longest of what is left."""
        longest = max(self.workqueue, key=self._cost_s)
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)

    def _cost_s(self, scope: str) -> float:
        tests = self.workqueue[scope]
        files = {test.partition("::")[0] for test in tests}
        return sum(self._costs_s.get(name, 0.0) for name in files) or PER_TEST_S * len(tests)
