"""Runs: what is listed of each, and what is known of one."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightship_platform.results.host import Device
from tightship_platform.vocabulary import RunSource


@dataclass(frozen=True, kw_only=True)
class Run:
    """One execution of a workflow, and where its device time went."""

    run: str
    """Its id, made by the launcher."""
    workflow: str
    """Name of the recurring work that it is one execution of."""
    team: str | None
    """Team of the workflow; null: none was given."""
    owner: str | None
    """Owner of the workflow; null: none was given."""
    state: str
    """`running`, `finished`, `failed` or `lost`; `unknown`: it ended, and how is not known; of an imported fleet also
    `cancelled`, `timeout` or `out_of_memory`."""
    reason: str | None
    """Why it failed or was lost; null where nothing is known or nothing went wrong."""
    exit_code: int | None
    """As a shell reports it: 128 + n after signal n; null while it runs, or where nobody saw its end."""
    start_ns: int
    """When it started."""
    end_ns: int | None
    """When it ended; null: it has not."""
    devices: list[Device]
    """Devices that it holds or held; empty where none was seen."""
    steps: int | None
    """Optimizer steps of the furthest rank; null: no step counter reported."""
    device_ns: int
    """Device time that it held: that of its account, for a live run as of when that was made."""
    account: dict[str, int] | None
    """Device time in nanoseconds by bucket, which sums to `device_ns`; null before the first account."""
    accounted_ns: int | None
    """When the account was made; null: never, or something arrived since that changes it."""
    simulated: bool
    """Made up by a simulator: nothing of it was measured."""
    host: str | None = None
    """Host of its launcher; null: nobody reported it."""
    user: str | None = None
    """User who launched it; null: nobody reported it."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of `tightship run --label`, as `tightship runs label` left them."""
    external_id: str | None = None
    """Its id in the scheduler, such as the Slurm job id; null: it has none."""
    git_commit: str | None = None
    """Commit of the git repository that it was launched in; null: it is in none, or nobody knows."""
    git_dirty: bool | None = None
    """Whether files that git tracks differed from the commit; null: not known."""
    image: str | None = None
    """The container image that its environment named; null: none."""
    torch_version: str | None = None
    """Release of torch that its interpreter finds; null: none, or not known."""
    cuda_version: str | None = None
    """Release of CUDA that its torch was built for; null: none, or not known."""
    driver_version: str | None = None
    """Release of its host's NVIDIA driver; null: none, or not known."""
    name: str | None = None
    """What somebody called it with `tightship runs rename`; null: nothing."""
    waiting_ns: int | None = None
    """How long it waited in a scheduler's queue before it started; null: not known."""
    source: str = RunSource.LAUNCH.value
    """`launch`: `tightship run` started it; `agent`: the same, and so far only its agent has reported it; `seen`: its
    agent found it, started otherwise, so it has no steps and no captures; or `import:<format>`."""

    @property
    def is_seen(self) -> bool:
        """Its agent found it, and `tightship run` did not start it."""
        return self.source == RunSource.SEEN


@dataclass(frozen=True, kw_only=True)
class RunRank:
    """A training process of a run, as its agent last reported it."""

    rank: int
    """Its rank; -1: not yet known."""
    pid: int
    """Process id on its host."""
    host: str
    """Host that it runs on."""
    guard: bool
    """An exit guard is known to be installed in it."""


@dataclass(frozen=True, kw_only=True)
class RunOffload:
    """The offload plan that a run used, and what its steps took."""

    plan: dict[str, int]
    """What the plan says: `layers`, `slots`, `resident`, and the step that it predicted with low and high."""
    predicted_ns: int | None
    """The step that the plan predicted; null: none was predicted."""
    measured_ns: int | None
    """The median step of the run; null: none was measured."""
    step: dict[str, int]
    """Medians of the run's steps: what they waited for, copied and updated; `steps` is how many there were."""


@dataclass(frozen=True, kw_only=True)
class RunDetail(Run):
    """One run with everything that is known of it."""

    command: list[str]
    """The command that was launched; empty: nobody reported it."""
    fleet: str
    """`live`, or the name of the imported fleet that it is of."""
    ranks: list[RunRank]
    """Its training processes as last reported; empty: none reported."""
    error: str | None
    """`type: message` of the uncaught exception that ended it; null: none is known."""
    oom_kills: int | None
    """Processes that the kernel killed for lack of memory while it ran; null: not known."""
    last_seen_ns: int
    """The last record or heartbeat that named it."""
    last_step_ns: int | None
    """When a rank last ended a step; null: no step counter reported, or samples of then are kept no more."""
    offload: RunOffload | None
    """The offload plan that it used; null: none."""
