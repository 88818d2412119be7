"""A planning request: a model, and the machine to plan for. Light, for pages import it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

import msgspec

from tightship_platform.errors import TightshipError
from tightship_platform.results.plan_answer import PlanSource

CPU = "cpu"
"""Name of the device where host memory plays it."""
MOST_PROFILE_BYTES = 256 * 1024
"""A profile of 500 layers has 64 KiB."""
VERSION = 1
"""Of stored requests and answers: raised when their form changes, or the answer to the same request does."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A model, from a workflow's traces or a profile, and the machine to plan for. Null: as the model's own machine."""

    workflow: str | None = None
    """Whose traces they are."""
    sources: tuple[PlanSource, ...] = ()
    """Traces to try, in this order."""
    profile: str | None = None
    """The text of a profile, where there is no trace; nothing of it has been checked."""
    recorded_on: str | None = None
    """Device of the traces: its name, or `cpu`."""
    recorded_bytes: int | None = None
    """Memory of that device, as it reported it."""
    device: str | None = None
    """Device to plan for, if not that one."""
    host_bytes: int | None = None
    cores: int | None = None
    budget_bytes: int | None = None
    """Most device memory to use."""

    @property
    def key(self) -> str:
        """A hash of all that the answer depends on: the content of the traces, not where they lie."""
        return _hash(asdict(replace(self, workflow=None, sources=())) | {"traces": self._contents, "version": VERSION})

    @property
    def traces_key(self) -> str | None:
        """A hash of the traces' content; null: a profile was given."""
        return _hash({"traces": self._contents, "version": VERSION}) if self.profile is None else None

    @property
    def _contents(self) -> list[str]:
        return [one.sha256 for one in self.sources]

    def encode(self) -> str:
        """As JSON in ASCII: a profile that was pasted may hold what a database does not take as text."""
        return json.dumps(asdict(self))


def decode_request(text: str) -> Request:
    """The request that was stored.

    :raises TightshipError: another release stored it, or it was damaged.
    """
    try:
        return msgspec.convert(json.loads(text), Request)
    except (ValueError, RecursionError):
        raise TightshipError("the stored request cannot be read: another release wrote it; request it again") from None


def _hash(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
