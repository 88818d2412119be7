"""The closed word lists of tightship: states, buckets, scopes. One concept, one word, one place."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    """Ended with exit code 0."""
    FAILED = "failed"
    """Ended with another exit code or by a signal."""
    LOST = "lost"
    """Neither a heartbeat nor an end record came for a while; of an imported run, its node failed."""
    CANCELLED = "cancelled"
    """A user or the scheduler ended it, as an import says."""
    TIMEOUT = "timeout"
    """It reached its time limit, as an import says."""
    OUT_OF_MEMORY = "out_of_memory"
    """It was ended for lack of memory, as an import says."""
    UNKNOWN = "unknown"
    """It ended, and how is not known: an import does not say, or no launcher was there."""


class RunSource(StrEnum):
    """Who reports a run; of an imported one it is `import:<format>`."""

    LAUNCH = "launch"
    """`tightship run` started it."""
    AGENT = "agent"
    """`tightship run` started it, and so far only its agent has reported it."""
    SEEN = "seen"
    """Its agent found it on the host: it was not started by `tightship run`. It has no steps and no captures."""


class HostState(StrEnum):
    """Whether a host's agent was heard of lately."""

    ALIVE = "alive"
    SILENT = "silent"


class CaptureState(StrEnum):
    """A capture moves down this list, or to FAILED / EXPIRED with a reason."""

    REQUESTED = "requested"
    LEASED = "leased"
    ARMED = "armed"
    RECORDING = "recording"
    WRITTEN = "written"
    UPLOADED = "uploaded"
    ANALYZED = "analyzed"
    FAILED = "failed"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        """Nothing more will happen."""
        return self in (CaptureState.ANALYZED, CaptureState.FAILED, CaptureState.EXPIRED)

    @property
    def rank(self) -> int:
        """Position in the sequence; a capture never moves to a lower one except by a renewed request."""
        return list(CaptureState).index(self)


class PlanState(StrEnum):
    """Where a request for an offload plan stands."""

    REQUESTED = "requested"
    PLANNING = "planning"
    """A worker is at it, and gives signs of life."""
    PLANNED = "planned"
    REFUSED = "refused"
    """There is no answer, and one line says why."""

    @property
    def is_final(self) -> bool:
        """Nothing more will happen by itself."""
        return self in (PlanState.PLANNED, PlanState.REFUSED)


class Bucket(StrEnum):
    """Where device time went. A run's buckets sum to its allocated device-nanoseconds exactly. See docs/account.md."""

    PRODUCTIVE = "productive"
    """The device computed."""
    INPUT = "input"
    """The device waited for the next batch."""
    CHECKPOINT = "checkpoint"
    """The device waited while state was saved."""
    HOST_SYNC = "host_sync"
    """The device was idle because the host was blocked by a scalar read or another synchronization."""
    HOST = "host"
    """The device waited for the host to launch work."""
    QUEUED = "queued"
    """The device waited though its next work was queued: for another stream, for an event, for a kernel to start."""
    COMMUNICATION = "communication"
    """Exposed communication: no computation overlapped it."""
    HELD_IDLE = "held_idle"
    """The run held the device and nothing at all happened, neither device activity nor steps."""
    STARTUP = "startup"
    """From the allocation of the device to the first step; of a run without steps, to its first activity."""
    SHUTDOWN = "shutdown"
    """From the last step to the release of the device."""
    NEVER_STARTED = "never_started"
    """A run that is over held the device, and never made a step nor had any device active."""
    LOST = "lost"
    """What a failed run did after its last checkpoint that a trace shows."""
    UNALLOCATED = "unallocated"
    """The device was reported, and no run held it. Of a fleet, never of a run."""
    UNEXPLAINED = "unexplained"
    """Neither a metric nor a trace shows what happened."""


class Method(StrEnum):
    """How a saving was obtained, best first."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    BOUND = "bound"


class Standing(StrEnum):
    """What is known of a rule's advice, the surest first."""

    PROVEN = "proven"
    """Three real cases or more, and right in nine of ten."""
    UNPROVEN = "unproven"
    """Fewer than three real cases."""
    EXPERIMENTAL = "experimental"
    """Wrong in more than one of ten real cases."""


class SavingUnit(StrEnum):
    """The unit of a saving."""

    STEP = "ns/step"
    """The mean step of a trace."""
    RECORDING = "ns/recording"
    """The whole recording: a trace that marks no steps is judged as one period."""
    DEVICE_TIME = "ns"
    """Device time over the life of a run, or of the recent runs of a workflow."""

    @property
    def whole(self) -> str:
        """What a share is a share of: 12 % of the step."""
        return {SavingUnit.STEP: "step", SavingUnit.RECORDING: "recording"}.get(self, "device time")


class OpportunityState(StrEnum):
    """Where an opportunity stands in the loop."""

    OPEN = "open"
    APPLIED = "applied"
    VERIFIED = "verified"
    REFUTED = "refuted"
    DISMISSED = "dismissed"


class Verdict(StrEnum):
    """What a comparison of steps before and after a change says."""

    VERIFIED = "verified"
    """A step takes less device time."""
    REFUTED = "refuted"
    """It does not."""
    UNDECIDED = "undecided"
    """The steps that there are do not tell."""


class ActionKind(StrEnum):
    """What somebody does about an opportunity."""

    APPLY = "apply"
    DISMISS = "dismiss"
    REOPEN = "reopen"


class Scope(StrEnum):
    """What a token permits. Every API route declares the one that it needs."""

    INGEST = "ingest"
    READ = "read"
    CAPTURE = "capture"
    APPLY = "apply"
    DELETE = "delete"
    ADMIN = "admin"
    ENROL = "enrol"
    """Of a one-time word only: to be exchanged for a host's token."""


class DeviceKind(StrEnum):
    """What a device is."""

    GPU = "gpu"
    MIG = "mig"
    CPU = "cpu"
    """The processor of a host that has no accelerator."""


LIVE = "live"
"""The fleet that agents and launchers report. Every other fleet is an imported history, under its own name."""


class FleetFormat(StrEnum):
    """What an imported history is read from."""

    SLURM_SACCT = "slurm-sacct"
    ALIBABA_GENAI = "alibaba-genai"
    KINETO = "kineto"
    CSV = "csv"


class AccountBy(StrEnum):
    """What an account is split by."""

    FLEET = "fleet"
    TEAM = "team"
    WORKFLOW = "workflow"
    STATE = "state"
    RUN = "run"
