"""Brings the server the stacks that somebody asks for with `tightship why`, on its own thread."""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any

from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.run_stacks import read_run
from tightship_platform.client import ApiClient
from tightship_platform.errors import TightshipError
from tightship_platform.results.codec import decode
from tightship_platform.wire import STACKS_S, StackAnswer, StackLease

log = logging.getLogger(__name__)

READ_S = 0.75 * STACKS_S
"""How long reading may take; the rest is for the way."""
MAX_WAITING = 64


class StackRequests:
    """Give it what the server answers to a request for leases; a run is looked at after the one before it."""

    def __init__(self, client: ApiClient, host: str) -> None:
        self._client = client
        self._host = host
        self._waiting: queue.Queue[tuple[HostRun, StackLease]] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None

    def take(self, answer: Any, runs: Mapping[str, HostRun]) -> None:
        """Begin to read the stacks that the answer asks for; of a run that is gone, none.

        :param runs: the live runs of this host by id.
        :raises Invalid: the answer is none.
        """
        for lease in decode(list[StackLease], answer.get("stacks", []), "stacks"):
            run = runs.get(lease.run)
            if run is not None and not self._waiting.full():
                self._waiting.put((run, lease))
                self._begin()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="stacks", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            run, lease = self._waiting.get()
            try:
                found = StackAnswer(host=self._host, processes=read_run(run, native=lease.native, within_s=READ_S))
                self._client.post(f"/runs/{run.run}/stacks/answer", dataclasses.asdict(found))
            except TightshipError as error:
                log.warning("stacks of run %s cannot be brought: %s", run.run, error)
            except Exception:  # a defect in one look must not end all others
                log.exception("stacks of run %s cannot be read", run.run)
