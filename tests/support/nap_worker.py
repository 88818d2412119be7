"""A real worker with a task that naps, whose consumer hangs on request: `python nap_worker.py HOW`.

HOW is `well`, or what becomes of it: it hangs as soon as there is a file `hang` in its home, where `deaf` counts a
place as taken for ever, `stuck` stands still in its loop, `late` in its schedule.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

NAP = "tests.nap"
LOOK_S = 0.2
"""Between two looks of the watchdog at a worker that will hang."""


def main(how: str) -> int:
    """Run it; the exit code."""
    os.environ.setdefault("REMAP_SIGTERM", "SIGQUIT")  # as commands/worker.py
    from tightship_platform.settings import load_settings
    from tightship_platform.tasks import redis_broker, watchdog, worker
    from tightship_platform.tasks.app import create_celery

    settings = load_settings()
    hang = settings.home / "hang"
    if how != "well":
        watchdog.LOOK_S, worker.LIVENESS_S, worker.LAST_RESORT_S = LOOK_S, LOOK_S / 4, 1.0
    app = create_celery(settings)
    app.conf.broker_transport_options["socket_timeout"] = 1

    @app.task(name=NAP)  # type: ignore[untyped-decorator]  # celery carries no types
    def nap(done: str, seconds: float) -> None:
        time.sleep(seconds)
        with Path(done).open("a") as file:
            file.write("done\n")

    def nothing_more() -> None:
        while hang.exists():
            time.sleep(0.1)

    if how == "deaf":
        can_consume = redis_broker.QoS.can_consume
        redis_broker.QoS.can_consume = lambda self: not hang.exists() and can_consume(self)
    elif how == "stuck":
        report_alive = worker.report_alive

        def stand_still(home: Path, part: str) -> None:
            report_alive(home, part)
            nothing_more()

        worker.report_alive = stand_still
    elif how == "late":
        tick = worker.Schedule.tick

        def never(self: worker.Schedule, *args: object, **kwargs: object) -> float:
            nothing_more()
            return min(LOOK_S / 4, tick(self, *args, **kwargs))

        worker.Schedule.tick = never
    return worker.run_worker(settings, concurrency=1, beat=how == "late")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
