"""What goes wrong in a data centre: drawn by a number, begun and ended."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from installation import LAUNCHED_EXIT_CODE, Installation

ALL = 100
CHAOS_S = 15.0
HOUR_S = 3600
_OURS = ("killed", "stopped", "clock", "full log")
FLEET = {
    "agent": (*_OURS, "full spool"),
    "server": (*_OURS, "full store", "broken store"),
    "worker": (*_OURS, "full temp", "broken store"),
    "launcher": ("full home",),
    "postgres": ("killed", "stopped", "restarted", "full disk"),
    "redis": ("killed", "stopped"),
}
"""Part → what becomes of it. `killed`: it and all below it, at once; Redis comes back empty. `stopped`: it hangs, and
its connections stay. `full …`: nothing can be written there; `broken …`: nothing be read, either."""
ALONE = {
    "agent": FLEET["agent"],
    "server": FLEET["server"],
    "worker": FLEET["worker"],
    "launcher": FLEET["launcher"],
    "database": ("full disk",),
    "broker": ("full disk",),
}
"""The same where SQLite and a folder take the place of PostgreSQL and Redis."""
EACH_ALONE = 4
"""One schedule in so many is of an installation without services."""


@dataclass(frozen=True)
class Trouble:
    """What happens to one part, and how it ends."""

    part: str
    kind: str
    after_s: float
    for_s: float
    offset_s: int = 0

    def __str__(self) -> str:
        what = f"{self.kind} {self.offset_s:+d} s" if self.offset_s else self.kind
        return f"{self.after_s:.1f} s: {self.part} {what} for {self.for_s:.1f} s"


def is_alone(seed: int) -> bool:
    """Whether the schedule of this number is of an installation without services."""
    return seed % EACH_ALONE == EACH_ALONE - 1


def draw(seed: int) -> list[Trouble]:
    """Two to six of them, one after another or at once."""
    dice = random.Random(seed)
    kinds = [(part, kind) for part, kinds in (ALONE if is_alone(seed) else FLEET).items() for kind in kinds]
    troubles = []
    for part, kind in (dice.choice(kinds) for _ in range(dice.randint(2, 6))):
        offset = dice.choice([-HOUR_S, HOUR_S]) if kind == "clock" else 0
        troubles.append(Trouble(part, kind, dice.uniform(0, CHAOS_S - 4), dice.uniform(0.5, 6), offset))
    return sorted(troubles, key=lambda one: one.after_s)


def play(installation: Installation, troubles: list[Trouble]) -> list[str]:
    """The whole schedule, in real time; what is wrong with the launched jobs."""
    moments = [(one.after_s, True, one) for one in troubles]
    moments += [(one.after_s + one.for_s, False, one) for one in troubles]
    started, wrong = time.monotonic(), []
    for after_s, is_begin, trouble in sorted(moments, key=lambda one: one[0]):
        installation.sleep_until(started + after_s)
        if is_begin:
            _begin(installation, trouble)
        else:
            wrong += _end(installation, trouble)
    installation.sleep_until(started + CHAOS_S)
    return wrong


def _begin(installation: Installation, trouble: Trouble) -> None:
    for name in _met_by(trouble):
        part = installation.parts[name]
        match trouble.kind.split():
            case ["killed"]:
                installation.down.add(name)
                part.kill()
            case ["restarted"]:
                installation.down.add(name)
                part.end()
            case ["stopped"]:
                part.send(signal.SIGSTOP)
            case ["clock"]:
                part.set_clock(trouble.offset_s)
            case ["full", _]:
                part.fill_disk(_place(installation, trouble))
            case ["broken", _]:
                part.break_disk(_place(installation, trouble))
        if name == "launcher":
            part.start()


def _end(installation: Installation, trouble: Trouble) -> list[str]:
    wrong = []
    for name in _met_by(trouble):
        part = installation.parts[name]
        match trouble.kind.split():
            case ["stopped"]:
                part.send(signal.SIGCONT)
            case ["clock"]:
                part.set_clock(0)
            case ["full" | "broken", _]:
                part.mend_disk()
        if name == "launcher" and part.process is not None and part.process.wait() != LAUNCHED_EXIT_CODE:
            wrong.append(f"a job that ended with {LAUNCHED_EXIT_CODE} did so as {part.process.returncode}")
        installation.down.discard(name)
    installation.keep()
    return wrong


def _met_by(trouble: Trouble) -> tuple[str, ...]:
    """Processes that it happens to."""
    return ("server", "worker") if trouble.part in ("database", "broker") else (trouble.part,)


def _place(installation: Installation, trouble: Trouble) -> Path:
    home, folder = installation.home, installation.folder
    return {
        "log": folder / f"{trouble.part}.log",
        "spool": home / "spool",
        "store": home / "artifacts",
        "temp": folder / "temp",
        "home": home,
        "disk": {"postgres": folder / "postgres", "database": home / "tightship.db", "broker": home / "broker"}.get(
            trouble.part, home
        ),
    }[trouble.kind.split()[1]]
