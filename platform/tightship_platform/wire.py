"""What travels between agents, launchers and the API: plain dataclasses, JSON on the wire.

The agent encodes them with `dataclasses.asdict` (no pydantic on the host); FastAPI validates the same classes and
writes them into the OpenAPI document. Every record may be delivered more than once: the server applies it
idempotently. Times are UTC nanoseconds, sizes bytes, ratios 0..1; missing is null.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NAME_MAX = 200
"""Longest workflow, team, owner, host, label key or value."""
ERROR_MAX = 1000
"""Longest words of a job's error that are kept."""


@dataclass(kw_only=True)
class RunRecord:
    """A run as its launcher tells it, or the agent that saw it, at its start and again at its end."""

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
    seen: bool = False
    """The host's agent found it: `tightship run` did not start it. Only the agent's token may tell, with `uid`."""
    offload: dict[str, int] = field(default_factory=dict)
    """What the job's offload plan predicted and what its steps took; the figures are named in ingest/offload.py."""


@dataclass(kw_only=True)
class RunEdit:
    """What a person changes of a run. No report of its launcher or agent undoes it."""

    name: str | None = None
    """What it is called from now on; empty: nothing. Null: as before."""
    labels: dict[str, str | None] = field(default_factory=dict)
    """Label → value; null takes the label away. Labels that are not named stay."""


@dataclass(kw_only=True)
class DeviceRecord:
    """A device of the reporting host."""

    uuid: str
    kind: str
    name: str
    memory_bytes: int | None = None


@dataclass(kw_only=True)
class SourceState:
    """What one source of metrics can see."""

    name: str
    """Its name, such as `nvml`."""
    state: str
    """`ok`, `absent` or `error`."""
    detail: str = ""
    """Why, in one line; empty: nothing to say."""


@dataclass(kw_only=True)
class RankRecord:
    """One training process of a run."""

    rank: int
    pid: int
    guard: bool
    """The exit guard is known to be installed in it."""
    steps: int | None = None


@dataclass(kw_only=True)
class LiveRun:
    """A run that the agent sees alive on its host, and the devices it holds there."""

    run: str
    ranks: list[RankRecord] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    """UUIDs of devices held now."""
    since_ns: int = 0
    """Start of the run's oldest process on this host."""


@dataclass(kw_only=True)
class Heartbeat:
    """Who is there. Sent every few seconds, never spooled: only the newest matters."""

    host: str
    time_ns: int
    agent_version: str
    info: dict[str, str | int | float] = field(default_factory=dict)
    devices: list[DeviceRecord] = field(default_factory=list)
    sources: list[SourceState] = field(default_factory=list)
    runs: list[LiveRun] = field(default_factory=list)


@dataclass(kw_only=True)
class DeviceSample:
    """One device at one instant; columns as in models.metrics.Sample."""

    time_ns: int
    device: str
    util_frac: float | None = None
    sm_active_frac: float | None = None
    sm_occupancy_frac: float | None = None
    tensor_active_frac: float | None = None
    dram_active_frac: float | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    clock_hz: int | None = None
    pcie_rx_bytes_per_s: int | None = None
    pcie_tx_bytes_per_s: int | None = None
    nvlink_rx_bytes_per_s: int | None = None
    nvlink_tx_bytes_per_s: int | None = None


@dataclass(kw_only=True)
class HostSampleRecord:
    """The host at one instant; columns as in models.metrics.HostSample."""

    time_ns: int
    cpu_frac: float | None = None
    memory_used_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_read_bytes_per_s: int | None = None
    disk_write_bytes_per_s: int | None = None
    net_rx_bytes_per_s: int | None = None
    net_tx_bytes_per_s: int | None = None


@dataclass(kw_only=True)
class RunSampleRecord:
    """What one run used of one device at one instant."""

    time_ns: int
    run: str
    device: str
    util_frac: float | None = None
    memory_used_bytes: int | None = None
    cpu_cores: float | None = None


@dataclass(kw_only=True)
class StepRecord:
    """Steps of one rank within one bucket of time."""

    run: str
    rank: int
    time_ns: int
    width_ns: int
    steps: int
    first_step_ns: int | None = None
    last_step_ns: int | None = None


@dataclass(kw_only=True)
class AllocationRecord:
    """A run holds a device from `start_ns`; `end_ns` is null while it does."""

    run: str
    device: str
    start_ns: int
    end_ns: int | None = None


@dataclass(kw_only=True)
class Batch:
    """A host's metrics since its last batch."""

    host: str
    devices: list[DeviceRecord] = field(default_factory=list)
    """Named again so that a batch can be applied before any heartbeat."""
    samples: list[DeviceSample] = field(default_factory=list)
    host_samples: list[HostSampleRecord] = field(default_factory=list)
    run_samples: list[RunSampleRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    allocations: list[AllocationRecord] = field(default_factory=list)


@dataclass(kw_only=True)
class CaptureParams:
    """What to record. Exactly one of `duration_ns` and `iterations` is set."""

    duration_ns: int | None = 1_000_000_000
    """Length of the recording; null: it is counted in steps."""
    iterations: int | None = None
    """Optimizer steps to record; null: it is timed."""
    stacks: bool = True
    """Record the Python stack of every operator."""
    shapes: bool = True
    """Record the shapes of operator inputs."""
    memory: bool = False
    """Record every allocation."""
    insist: bool = False
    """Record also where no exit guard is known: a process that ends meanwhile may abort."""
    passes: int = 2
    """At most so many recordings of each rank: 2 records a second time, without stacks and shapes, where recording has
    made the steps more than STRETCHED times as long; 1 never does."""


@dataclass(kw_only=True)
class CaptureRequest:
    """Ask for one trace per rank of a run."""

    target: str
    """A run id, or a workflow name = its newest live run."""
    params: CaptureParams = field(default_factory=CaptureParams)
    requested_by: str = "cli"


@dataclass(kw_only=True)
class LeaseRequest:
    """An agent asks for captures of the runs that it sees alive."""

    host: str
    runs: list[str]
    wait_s: float = 0.0
    """How long to wait for one where there is none yet; at most MAX_LEASE_WAIT_S."""


@dataclass(kw_only=True)
class Lease:
    """A capture that this agent has to carry out before the lease expires; every report renews it."""

    capture: str
    """Id of the capture."""
    run: str
    """Id of the run."""
    params: CaptureParams
    """What to record."""
    attempt: int
    """How often the capture has been leased, this time included."""
    lease_expires_ns: int
    """When the lease expires."""


@dataclass(kw_only=True)
class ExpectedRank:
    """One entry of a capture's manifest."""

    rank: int
    """A rank whose trace is to come."""
    pid: int | None
    """Its process; null: an imported trace does not say it."""


@dataclass(kw_only=True)
class CaptureReport:
    """How far the agent is with a capture.

    `failed` needs a reason; `requested` gives the lease back with one; `leased` may say what the agent waits for.
    """

    host: str
    state: str
    reason: str | None = None
    expected: list[ExpectedRank] = field(default_factory=list)
    """The manifest, as soon as it is known (`armed`)."""
    passes: int = 1
    """Traces of each rank that are to arrive, with `written`; 1 after 2: the second ones will not come."""
    passes_reason: str | None = None
    """Why there are two, or why there is one though two were wanted."""


@dataclass(kw_only=True)
class StackRequest:
    """Ask for the stacks of a live run."""

    native: bool = False
    """Also frames of C and C++, which takes seconds for each process."""


@dataclass(kw_only=True)
class StackLease:
    """Stacks that this agent has to bring."""

    run: str
    """Id of the run."""
    native: bool
    """Also frames of C and C++."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One call of a stack."""

    function: str
    """Its name."""
    file: str
    """Where it is defined."""
    line: int
    """Line that it is at; 0: not known."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}" if self.line else f"{self.file} {self.function}"


@dataclass(kw_only=True)
class ProcessFrames:
    """A process of a live run, and what its main thread is at."""

    pid: int
    """Process id on its host."""
    rank: int | None = None
    """Global rank; null: it is no rank."""
    steps: int | None = None
    """Optimizer steps so far; null: they are not counted."""
    last_step_ns: int | None = None
    """When it made the last one; null: none."""
    runs: bool | None = None
    """Its main thread computes; false: it waits. Null: not known."""
    frames: list[Frame] = field(default_factory=list)
    """Calls of the main thread, the innermost first; empty where they cannot be had."""
    reason: str | None = None
    """Why they cannot be had."""


@dataclass(kw_only=True)
class StackAnswer:
    """The stacks that an agent was asked for."""

    host: str
    processes: list[ProcessFrames]


@dataclass(kw_only=True)
class EnrolRequest:
    """A host's agent asks for its own token; the request comes with a one-time word as its bearer token."""

    host: str


@dataclass(kw_only=True)
class Enrolled:
    """The word is used up."""

    name: str
    """Name of the token."""
    token: str
    """The token, which is shown this once."""


@dataclass(kw_only=True)
class RunReceived:
    """A run's record is stored."""

    run: str
    """Id of the run."""


@dataclass(kw_only=True)
class HeartbeatReceived:
    """A heartbeat is stored."""

    refused: int = 0
    """Runs in it that belong to another host; nothing was stored of them."""
    refusal: str | None = None
    """What is wrong with the first of them; null: none was refused."""


@dataclass(kw_only=True)
class BatchReceived:
    """A batch is stored."""

    rows: int
    """Rows of the batch; records of devices count where they were refused."""
    too_old: int = 0
    """Of these, samples and step counts that are older than the server keeps them, and were not stored."""
    refused: int = 0
    """Of these, rows with a value that cannot be; they were not stored."""
    refusal: str | None = None
    """What is wrong with the first of them; null: none was refused."""
    unknown_runs: list[str]
    """Runs in it whose launcher has not reported yet."""


@dataclass(kw_only=True)
class Leases:
    """Captures that the agent is to carry out."""

    leases: list[Lease]
    """One per run at most."""
    stacks: list[StackLease] = field(default_factory=list)
    """Runs whose stacks it is to bring."""


@dataclass(kw_only=True)
class TraceReceived:
    """A trace file is stored."""

    trace: int
    """Id of the trace."""


@dataclass(kw_only=True)
class Refusal:
    """Any answer that is no success."""

    error: str
    """What is wrong, the value seen and what to do, in one line."""


LEASE_NS = 30_000_000_000
"""A lease that is not renewed by a report for this long is taken back."""
MAX_LEASE_WAIT_S = 20.0
"""Longest wait for a lease: less than the time for which clients wait for an answer."""
MAX_HEARTBEAT_RUNS = 1000
"""Runs in one heartbeat; an agent that sees more sends several, which add up."""
STACKS_S = 60.0
"""An agent that was asked for stacks brings them within this time."""
MAX_CAPTURE_ATTEMPTS = 3
MIN_CAPTURE_NS = 10_000_000
MAX_CAPTURE_NS = 60_000_000_000
MAX_ITERATIONS = 10_000
MAX_PASSES = 2
STRETCHED = 1.5
"""A recorded step that takes so many times as long as an unrecorded one says too little about where time goes: what
recording adds sits where there are most calls, not where the job is slow."""
