"""Where questions are asked: each is answered once, by a child process, while the server goes on.

key = desk.ask(question)
desk.look(key)      # a Standing: at which stage, and in the end the answer or the refusal

A page comes back for its answer, so nothing waits here. Answers are kept under what they depend on: the content of the
traces, the machine, the budget.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import Any

from tightship_analyzers.offload_planner.request import Question
from tightship_analyzers.offload_planner.sources import Source
from tightship_platform.errors import Conflict

log = logging.getLogger(__name__)

AT_ONCE = 2
"""Questions that are worked on; others wait."""
MOST_WAITING = 50
MOST_KEPT = 200
TIMEOUT_S = 300.0
"""A trace of 500 MB is read in half a minute; a search over 100 layers takes less."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a question is."""

    stage: str
    answer: dict[str, Any] | None = None
    refused: str | None = None
    """One line: why there is no answer."""

    @property
    def is_over(self) -> bool:
        """Nothing more will come."""
        return self.answer is not None or self.refused is not None


class Desk:
    """Questions and their answers; in memory, for one server."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._turn = threading.Semaphore(AT_ONCE)
        self._known: OrderedDict[str, Standing] = OrderedDict()
        self._profiles: OrderedDict[tuple[str, ...], tuple[str, Source]] = OrderedDict()

    def ask(self, question: Question) -> str:
        """Have it answered, if it was not asked before; returns the key to `look` for.

        :raises Conflict: too many others wait.
        """
        key = _key(question)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return key
            if sum(not one.is_over for one in self._known.values()) >= MOST_WAITING:
                raise Conflict(f"{MOST_WAITING} plans are being made already; try again in a minute")
            self._known[key] = Standing(stage="waiting for its turn")
        threading.Thread(target=self._work, args=(key, question), name=f"plan-{key[:8]}", daemon=True).start()
        return key

    def look(self, key: str) -> Standing | None:
        """How far a question is; None: it was never asked, or is forgotten."""
        with self._lock:
            return self._known.get(key)

    def _work(self, key: str, question: Question) -> None:
        with self._turn:
            traces = tuple(one.sha256 for one in question.sources)
            with self._lock:
                read = self._profiles.get(traces) if traces else None
            if read is not None:
                question = replace(question, profile=read[0], sources=(), keys=())
            try:
                standing = self._answered(key, question)
            except (OSError, ValueError) as error:
                log.warning("Planning could not be done: %s", error)
                standing = Standing(stage="over", refused=f"Planning could not be done: {error}")
            if standing.answer is not None and read is not None:
                standing.answer["source"] = asdict(read[1])
        with self._lock:
            self._known[key] = standing
            self._known.move_to_end(key)
            if standing.answer is not None and traces and read is None:
                self._profiles[traces] = standing.answer["profile"], Source(**standing.answer["source"])
            _shorten(self._profiles)
            over = [one for one, kept in self._known.items() if kept.is_over]
            for one in over[: max(0, len(over) - MOST_KEPT)]:
                del self._known[one]

    def _answered(self, key: str, question: Question) -> Standing:
        command = [sys.executable, "-m", "tightship_analyzers.offload_planner.answer"]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        timer = threading.Timer(self._timeout_s, child.kill)
        timer.daemon = True
        said: dict[str, Any] = {}
        complaints: list[str] = []
        listener = threading.Thread(target=lambda stream: complaints.append(stream.read()), args=(child.stderr,))
        try:
            timer.start()
            listener.start()
            child.stdin.write(json.dumps(asdict(question)) + "\n")
            child.stdin.flush()
            for line in child.stdout:
                said = json.loads(line)
                if "stage" not in said:
                    break
                with self._lock:
                    self._known[key] = Standing(stage=said["stage"])
        except BrokenPipeError:
            said = {}
        finally:
            timed_out = not timer.is_alive() and "answer" not in said
            timer.cancel()
            child.kill()
            child.wait()
            listener.join()
            for stream in (child.stdin, child.stdout, child.stderr):
                stream.close()
        if "answer" in said:
            return Standing(stage="over", answer=said["answer"])
        if "refused" in said:
            return Standing(stage="over", refused=said["refused"])
        if timed_out:
            why = f"Planning took more than {self._timeout_s:.0f} s; `tightship offload plan` has no such limit"
            return Standing(stage="over", refused=why)
        log.error("Planning ended without an answer: %s", complaints[0].strip()[-2000:] if complaints else "")
        return Standing(stage="over", refused="Planning ended without an answer; the server's log has the rest")


def _key(question: Question) -> str:
    """Of everything that the answer depends on; where the files are is no part of it."""
    asked = asdict(replace(question, keys=(), artifacts_url=""))
    asked["sources"] = [one.sha256 for one in question.sources]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _shorten(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > MOST_KEPT:
        kept.popitem(last=False)
