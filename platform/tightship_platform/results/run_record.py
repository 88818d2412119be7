"""What a launcher reports of a run.

By itself, as every other record that travels would add to what each job's launcher takes to start. Encoded and checked
like those of `wire`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class RunRecord:
    """A run as its launcher tells it, at its start and again at its end."""

    run: str
    workflow: str
    start_ns: int
    host: str
    user: str | None = None
    uid: int | None = None
    """Number of the user on the host. Only its agent knows, and only the agent's token may tell."""
    team: str | None = None
    owner: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    external_id: str | None = None
    git_commit: str | None = None
    """Commit of the git repository that the job was launched in, in full. Null: none, or not known."""
    git_dirty: bool | None = None
    """Whether files that git tracks differed from it. Null: not known."""
    image: str | None = None
    torch_version: str | None = None
    cuda_version: str | None = None
    """That torch was built for."""
    driver_version: str | None = None
    end_ns: int | None = None
    exit_code: int | None = None
    """As a shell reports it: 128 + n when the command died of signal n. Null while it runs."""
    error: str | None = None
    """`type: message` of the uncaught exception that ended it, on one line. Null where none is known."""
    oom_kills: int | None = None
    """Processes that the kernel killed for lack of memory in the job's control group while it ran. Null: not known."""
    offload: dict[str, int] = field(default_factory=dict)
    """What the job's offload plan predicted and what its steps took; the figures are named in ingest/offload.py."""
