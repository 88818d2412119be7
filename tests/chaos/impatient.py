"""`tightship …` that waits less for what may have been lost, so that a schedule is over within a minute.

Who waits for whom, and what happens then, stays as it is.
"""

from __future__ import annotations

import importlib
import os
import sys

from tightship_platform.units import NS_PER_S

os.environ.setdefault("REMAP_SIGTERM", "SIGQUIT")  # as commands/worker.py, which Celery's import would be ahead of

SHORTER_NS = {
    "LEASE_NS": 12 * NS_PER_S,
    "REQUEST_TTL_NS": 20 * NS_PER_S,
    "UPLOAD_NS": 20 * NS_PER_S,
    "ENQUEUE_NS": 6 * NS_PER_S,
    "ANALYSIS_NS": 15 * NS_PER_S,
}
PERIOD_S = 4.0
"""At most so long between two starts of a periodic task."""
PAUSE_S = 3.0
"""At most so long an agent waits before it tries again."""
PARTS = {
    "server": ("tightship_platform.api.app",),
    "worker": ("tightship_platform.tasks.periodic", "tightship_analyzers.fleet.tasks"),
    "agent": ("tightship_collectors.delivery.sender",),
}


def hurry(part: str) -> None:
    """Shorten, in all modules that the part will use."""
    from tightship_platform.tasks import registry

    for name in PARTS.get(part, ()):
        importlib.import_module(name)
    periods_s = registry.periods_s
    registry.periods_s = lambda: {task: min(period, PERIOD_S) for task, period in periods_s().items()}
    for module in [module for name, module in sys.modules.items() if name.startswith("tightship_")]:
        for name, value in SHORTER_NS.items():
            if isinstance(getattr(module, name, None), int):
                setattr(module, name, value)
        if hasattr(module, "MAX_PAUSE_S"):
            module.MAX_PAUSE_S = PAUSE_S  # type: ignore[attr-defined]


if __name__ == "__main__":
    hurry(sys.argv[1])
    from tightship_platform.cli import main

    sys.exit(main())
