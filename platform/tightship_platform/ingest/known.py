"""What this process knows of hosts from their last heartbeats and batches, so that it need not ask the database again.

[Note: what may be out of date]
Whatever stands here was committed, and stated by the same caller. Another server process may have changed it since, or
a host may have been removed or given to another token: a row that is gone is noticed (`forget`), and everything else
holds for KNOWN_NS only, or OWN_NS where the caller's token is the host's own, which nothing takes from it. What is
skipped because of it would write what that agent said to this process before. An agent keeps its connection, and so its
process; of one that changes twice between two processes, and its mind each time, the older word stands until then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tightship_platform.units import NS_PER_S

KNOWN_NS = 300 * NS_PER_S
"""Longest time for which something is known; shorter by up to half, so that hosts that began together part."""
OWN_NS = 1800 * NS_PER_S
"""The same, of a host whose own token the caller has: to learn it again costs as much as minutes of deliveries."""
MAX_HOSTS = 20_000
"""Hosts that are remembered by one process; some 10 kB each."""


@dataclass(kw_only=True)
class KnownRun:
    """A run that lives on the host, and was announced."""

    run_id: int
    stated: Any = None
    """What the host last stated of it, except its steps; None: nothing yet."""
    held: set[tuple[str, int]] = field(default_factory=set)
    """Open allocations that the host stated: device, start."""
    seen_ns: int = 0
    """What was last written as `last_seen_ns`."""


@dataclass(kw_only=True)
class KnownHost:
    """One host."""

    name: str
    host_id: int
    device_ids: dict[str, int]
    devices: Any = None
    """As the host last described them; None: it did not."""
    stated: Any = None
    """Its version, sources and facts in words, as last stated; None: not yet."""
    info: Any = None
    """Its facts as last written."""
    runs: dict[str, KnownRun] = field(default_factory=dict)
    until_ns: int = 0
    most_ns: int = KNOWN_NS
    """Longest time for which it is known; what is longer comes of a clock that was set back."""
    seen_ns: int = 0
    """What was last written as `last_seen_ns`."""


Tell = Callable[[KnownHost], None]
"""Takes what is true once the transaction is committed."""


class KnownHosts:
    """All hosts that this process knows, by caller and name. Threads may use it at once."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[Hashable, str], KnownHost] = {}

    def get(self, caller: Hashable, name: str, now: int) -> KnownHost | None:
        """The host, when what is known of it is recent."""
        found = self._hosts.get((caller, name))
        return found if found is not None and 0 <= found.until_ns - now < found.most_ns else None

    def keep(self, caller: Hashable, stated: KnownHost, now: int, *, is_own: bool = False) -> None:
        """Remember what was just committed, beside what is known already of the rest.

        :param is_own: the caller has the host's own token.
        """
        old = self.get(caller, stated.name, now)
        stated.most_ns = OWN_NS if is_own else KNOWN_NS
        lasts_ns = int(stated.most_ns * random.uniform(0.5, 1.0))  # noqa: S311
        stated.until_ns = now + lasts_ns if old is None else old.until_ns
        if old is not None and old.host_id == stated.host_id:
            stated.devices = stated.devices if stated.devices is not None else old.devices
            if stated.stated is None:
                stated.stated, stated.info = old.stated, old.info
            stated.seen_ns = max(stated.seen_ns, old.seen_ns)
            stated.runs = _joined(old.runs, stated.runs)
        if len(self._hosts) >= MAX_HOSTS:
            self._hosts.clear()
        self._hosts[caller, stated.name] = stated

    def forget(self, caller: Hashable, name: str) -> None:
        """It may not be so any more."""
        self._hosts.pop((caller, name), None)


def _joined(old: Mapping[str, KnownRun], new: Mapping[str, KnownRun]) -> dict[str, KnownRun]:
    runs = dict(old)
    for key, run in new.items():
        before = old.get(key)
        if before is not None and before.run_id == run.run_id:
            run.held |= before.held
            run.seen_ns = max(run.seen_ns, before.seen_ns)
            if run.stated is None:
                run.stated = before.stated
        runs[key] = run
    return runs
