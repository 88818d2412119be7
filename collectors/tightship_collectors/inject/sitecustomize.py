"""Runs at the start of every Python process of a launched job; `tightship run` puts its folder on PYTHONPATH.

It does nothing until torch is imported. Then it makes the control file `$TIGHTSHIP_RUN_DIR/ranks/<pid>` (layout and
exit protocol: jobs/control_file.py), counts optimizer steps there, and registers the exit guard. Three promises:

- It never raises into the job, and prints nothing (TIGHTSHIP_DEBUG=1 shows what went wrong).
- It hides no other sitecustomize: the next one on sys.path runs as if this one were not there.
- It needs nothing but the standard library, and parses on every Python: hence annotations in comments. Python 2 only
  passes through; 3.6 and later take part.
"""

# Imports for annotations in comments, old-style classes and os.path (pathlib would cost every process milliseconds):
# ruff: noqa: F401, PTH100, PTH104, PTH108, PTH110, PTH112, PTH118, PTH119, PTH120, PTH123, UP004, UP035

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

SIZE = 4096
MAGIC = b"TSRANK\x00\x01"
VERSION = 1
HEAD = "<8sIiQiiII"  # magic, version, pid, start ticks, rank, world size, flags, exiting
OFF_RANK, OFF_WORLD_SIZE, OFF_FLAGS, OFF_EXITING = 24, 28, 32, 36
OFF_STEPS, OFF_FIRST_STEP_NS, OFF_LAST_STEP_NS = 40, 48, 56
OFF_CAPTURE_IN_FLIGHT, OFF_CAPTURE_DEADLINE_NS, OFF_CAPTURE_PATH, CAPTURE_PATH_BYTES = 2048, 2056, 2064, 512
OFF_CAPTURE_START_NS, OFF_CAPTURE_END_NS, OFF_CAPTURE_ITERATIONS = 2576, 2584, 2592
GUARD, MP_CHILD, RANK_FROM_ENV, STEP_HOOK, FORKED, LAUNCHER = 1, 2, 4, 8, 16, 32

RUNNING, EXITING, CANCELLED = 0, 1, 2  # values of the field at OFF_EXITING

GUARD_MAX_S = 60.0
"""The guard never waits longer for a trace, whatever deadline the control file names."""
SETTLE_MAX_S = 4.0
"""How long after the trace is complete the agent may take to say that Kineto is idle."""
OPENING_S = 1.0
"""So close to the start of a window nothing is cancelled: Kineto's own thread may be opening it."""
TAIL_MAX_S = 10.0
"""A window that lasts longer than this beyond the end of the job is not waited for: the rest of it would be empty."""


def report():
    # type: () -> None
    """Show the exception at hand, if somebody debugs us; the job must not notice it otherwise."""
    if os.environ.get("TIGHTSHIP_DEBUG"):
        import traceback

        traceback.print_exc()


class ImportWatch(object):
    """Meta path finder that calls `before()` and `after(module)` around the first execution of one module."""

    def __init__(self, name, before, after):
        # type: (str, Callable[[], None], Callable[[Any], None]) -> None
        self.name = name
        self.before = before
        self.after = after
        self.asking = False

    def find_spec(self, name, path=None, target=None):
        # type: (str, Any, Any) -> Any
        """Asked for every import: returns None for all but the one name."""
        if name != self.name or self.asking:
            return None
        self.asking = True
        try:
            spec = self.ask_the_others(name, path, target)
        finally:
            self.asking = False
        try:
            if spec is not None and spec.loader is not None:
                self.hook(spec)
        except Exception:
            report()
        return spec

    def ask_the_others(self, name, path, target):
        # type: (str, Any, Any) -> Any
        """The spec that the job would get without us."""
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec is not None else None
            if spec is not None:
                return spec
        return None

    def hook(self, spec):
        # type: (Any) -> None
        """Shadow `exec_module` on the loader *instance*, so that `spec.loader` keeps its identity and type."""
        loader = spec.loader
        real = loader.exec_module

        def exec_module(module):
            # type: (Any) -> Any
            vars(loader).pop("exec_module", None)
            guarded(self.before)
            result = real(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            guarded(self.after, module)
            return result

        if not isinstance(loader, type):  # a loader that is a class (frozen, built-in) is shared with other modules
            loader.exec_module = exec_module


def guarded(function, *arguments):
    # type: (Callable[..., None], *Any) -> None
    """Call it; whatever it raises stays here."""
    try:
        function(*arguments)
    except Exception:
        report()


def load_later(name):
    # type: (str) -> Any
    """A module of the folder `inject_support`, by its path: on sys.path that folder would hide modules of the job's."""
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inject_support")
    spec = spec_from_file_location("_tightship_" + name, os.path.join(folder, name + ".py"))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ControlFile(object):
    """This process's `ranks/<pid>`, mapped."""

    def __init__(self, run_dir, flags):
        # type: (str, int) -> None
        import mmap
        import struct

        self.pid = os.getpid()
        rank, world_size = rank_from_environment()
        if rank >= 0:
            flags |= RANK_FROM_ENV
        path = os.path.join(run_dir, "ranks", str(self.pid))
        draft = path + ".new"
        if os.path.lexists(draft):
            os.unlink(draft)
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(fd, 0o600)  # whatever the umask took away
            head = struct.pack(HEAD, MAGIC, VERSION, self.pid, start_ticks(), rank, world_size, flags, 0)
            # Written whole, not sparse: a full disk is an error here, and no SIGBUS at some later step.
            if os.write(fd, head.ljust(SIZE, b"\0")) != SIZE:
                raise OSError("short write of " + draft)
            self.map = mmap.mmap(fd, SIZE)
        except Exception:
            os.unlink(draft)
            raise
        finally:
            os.close(fd)
        # Native items are stored with one memory access each, so that a reader never sees half a number.
        self.u64 = memoryview(self.map).cast("Q")
        self.u32 = memoryview(self.map).cast("I")
        self.i32 = memoryview(self.map).cast("i")
        os.rename(draft, path)

    def set_rank(self, rank, world_size):
        # type: (int, int) -> None
        self.i32[OFF_WORLD_SIZE // 4] = world_size
        self.i32[OFF_RANK // 4] = rank

    def add_flag(self, flag):
        # type: (int) -> None
        self.u32[OFF_FLAGS // 4] |= flag

    def capture_path(self):
        # type: () -> str
        raw = self.map[OFF_CAPTURE_PATH : OFF_CAPTURE_PATH + CAPTURE_PATH_BYTES]
        return os.fsdecode(raw.split(b"\0", 1)[0])


class Job(object):
    """What this process knows of itself. One instance; a forked child starts afresh."""

    def __init__(self, run_dir):
        # type: (str) -> None
        self.run_dir = run_dir
        self.file = None  # type: Optional[ControlFile]
        self.abandoned = []  # type: List[ControlFile]
        self.forked = False
        self.steps = 0
        self.steps_by_optimizer = {}  # type: Dict[int, int]
        self.rank_known = False
        self.on_exit = False
        self.real_prepare = None  # type: Optional[Callable[..., Any]]
        self.write_error_message = lambda _: None  # type: Callable[[Any], None]

    def before_torch(self):
        # type: () -> None
        """The guard is registered before torch runs: it is called after the exit functions that are registered from now
        on, so that none of them is held up by it, and before anything native is torn down."""
        import atexit

        if not self.on_exit:
            self.on_exit = True
            atexit.register(self.guard)

    def after_torch(self, module):
        # type: (Any) -> None
        self.before_torch()
        self.file = ControlFile(self.run_dir, GUARD | kind_of_process())
        self.rank_known = self.file.i32[OFF_RANK // 4] >= 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.after_fork)
            if os.environ.get("TIGHTSHIP_STEPS") != "0":
                self.count_steps()
        self.hold_own_profiler()
        self.write_error_message = load_later("error_message").write

    def hold_own_profiler(self):
        # type: () -> None
        """See [Note: a job that profiles itself]."""
        from functools import wraps

        profile = getattr(sys.modules.get("torch.autograd.profiler"), "profile", None)
        real = getattr(profile, "_prepare_trace", None)
        if profile is None or real is None:
            return

        @wraps(real)
        def prepare(*arguments, **options):
            # type: (*Any, **Any) -> Any
            guarded(self.before_own_profiler)
            return real(*arguments, **options)

        self.real_prepare = real
        profile._prepare_trace = prepare

    def before_own_profiler(self):
        # type: () -> None
        import time

        file = self.file
        if file is None or file.pid != os.getpid() or not file.u32[OFF_CAPTURE_IN_FLIGHT // 4]:
            return
        if wait_for_trace(file):
            patience = time.monotonic() + SETTLE_MAX_S
            while file.u32[OFF_CAPTURE_IN_FLIGHT // 4] and time.monotonic() < patience:
                time.sleep(0.02)

    def after_fork(self):
        # type: () -> None
        """A forked child has no Kineto thread and no business in its parent's file."""
        if self.file is not None:
            # Kept, not closed: the job may have closed the descriptor below it, and its number may be another's now.
            self.abandoned.append(self.file)
        self.file = None
        self.forked = True
        self.steps = 0
        self.steps_by_optimizer.clear()
        self.rank_known = False

    def count_steps(self):
        # type: () -> None
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:  # torch < 2.0
            return
        from time import time_ns
        from weakref import ref

        counts = self.steps_by_optimizer
        steps_at, first_at, last_at = OFF_STEPS // 8, OFF_FIRST_STEP_NS // 8, OFF_LAST_STEP_NS // 8

        def after_step(optimizer, args, kwargs):
            # type: (Any, Any, Any) -> None
            try:
                key = id(optimizer)
                count = counts.get(key)
                if count is None:
                    # As Kineto counts: a new optimizer joins at the present count, so that phases of training add up
                    # and optimizers that alternate do not.
                    count = self.steps
                    weak[key] = ref(optimizer, lambda _: forget(key))
                counts[key] = count = count + 1
                if count > self.steps:
                    self.steps = count
                    now = time_ns()
                    file = self.file or self.first_step_of_fork()
                    u64 = file.u64
                    u64[last_at] = now
                    u64[steps_at] = count
                    if not u64[first_at]:
                        u64[first_at] = now
                    if not self.rank_known and count <= 10:
                        self.ask_rank(file)
            except Exception:
                report()

        weak = {}  # type: Dict[int, Any]

        def forget(key):
            # type: (int) -> None
            counts.pop(key, None)
            weak.pop(key, None)

        after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        register(after_step)
        if self.file is not None:
            self.file.add_flag(STEP_HOOK)

    def first_step_of_fork(self):
        # type: () -> ControlFile
        """A forked child that trains is a separate rank, but Kineto cannot record it: it gets no guard flag."""
        self.file = ControlFile(self.run_dir, FORKED | STEP_HOOK | kind_of_process())
        self.rank_known = self.file.i32[OFF_RANK // 4] >= 0
        return self.file

    def ask_rank(self, file):
        # type: (ControlFile) -> None
        """Trainers that `mp.spawn` started know their rank only once the process group stands."""
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            file.set_rank(dist.get_rank(), dist.get_world_size())
            self.rank_known = True
            return
        rank, world_size = rank_from_environment()
        if rank >= 0:
            file.set_rank(rank, world_size)
            file.add_flag(RANK_FROM_ENV)
            self.rank_known = True

    def guard(self):
        # type: () -> None
        """See [Note: the end of a process that is being recorded]."""
        file = self.file
        if file is None or file.pid != os.getpid():
            return
        guarded(self.write_error_message, file.map)
        try:
            file.u32[OFF_EXITING // 4] = EXITING
            finished = wait_for_trace(file)
        except BaseException:  # an impatient Ctrl-C, or a signal handler that raises: the process is ending already
            report()
            finished = False
        if not finished:
            file.u32[OFF_EXITING // 4] = CANCELLED
            guarded(cancel_recording, self.real_prepare)


# [Note: the end of a process that is being recorded]
# Kineto's recorder does not survive the end of its process: the exit functions of the C++ runtime meet a running
# thread, and a job that had finished well dies of SIGABRT or SIGSEGV. So the guard, which Python calls before it takes
# anything down, either waits for the trace or cancels the recording:
# - it waits while the window is open and closes soon, and while the trace is being written;
# - a recording that counts iterations would never end, because there are none any more: the guard counts on for it;
# - it cancels where the window has not opened (its trace would show a job that is over), stays open for long, or the
#   agent's deadline has passed: a recording gives way to one that the process itself prepares, and none comes after it;
# - it waits while the window opens: cancelled between its look at the clock and the start of its recorder, Kineto's
#   thread starts that all the same, and nothing stops it any more (seen with torch 2.13).
# os._exit and fatal signals run no exit functions, neither ours nor those of C++, and so are safe.

# [Note: a job that profiles itself]
# Kineto gives a profiler that the job starts precedence over a recording on request. Before and while the window is
# open that merely drops the recording; while the trace is put together and written, it crashes the process (SIGSEGV,
# seen with torch 2.13 in five of six tries). So a profiler of the job's own waits, where the guard would, until the
# agent says that Kineto is idle again: seconds, in exchange for a process that lives.


def wait_for_trace(file):
    # type: (ControlFile) -> bool
    """True once nothing is recording; False when it is not worth waiting, or was in vain."""
    import time

    time.sleep(0.001)  # not only a pause: it is the fence between our store to `exiting` and the loads below
    if not file.u32[OFF_CAPTURE_IN_FLIGHT // 4]:
        return True
    trace = file.capture_path()
    start, end = file.u64[OFF_CAPTURE_START_NS // 8] / 1e9, file.u64[OFF_CAPTURE_END_NS // 8] / 1e9
    while abs(time.time() - start) < OPENING_S and file.u32[OFF_CAPTURE_IN_FLIGHT // 4] and not os.path.exists(trace):
        time.sleep(0.02)
    now = time.time()
    if now < start or now + TAIL_MAX_S < end:
        return os.path.exists(trace)
    patience = time.monotonic() + GUARD_MAX_S
    while file.u32[OFF_CAPTURE_IN_FLIGHT // 4] and not os.path.exists(trace):
        if time.time() > file.u64[OFF_CAPTURE_DEADLINE_NS // 8] / 1e9 or time.monotonic() > patience:
            return False
        if file.u32[OFF_CAPTURE_ITERATIONS // 4]:
            count_on(file.u32[OFF_CAPTURE_ITERATIONS // 4])
        time.sleep(0.02)
    return True


def count_on(iterations):
    # type: (int) -> None
    """Tell Kineto of as many iterations as were asked for; from C, so that no Python frame lands in the trace."""
    from collections import deque
    from itertools import repeat, starmap

    step = sys.modules["torch"]._C._autograd._kineto_step
    deque(starmap(step, repeat((), min(iterations, 20000))), maxlen=0)


def cancel_recording(real_prepare):
    # type: (Optional[Callable[..., Any]]) -> None
    """Make Kineto drop what it records for the agent, and refuse more."""
    profiler = sys.modules["torch.autograd.profiler"]
    (real_prepare or profiler.profile._prepare_trace)(profiler.profile(use_kineto=True))


def rank_from_environment():
    # type: () -> tuple[int, int]
    """RANK and WORLD_SIZE; -1 where absent or no number."""
    values = []
    for name in ("RANK", "WORLD_SIZE"):
        text = os.environ.get(name, "")
        values.append(int(text) if text.isdigit() and len(text) < 9 else -1)
    return values[0], values[1]


def start_ticks():
    # type: () -> int
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def kind_of_process():
    # type: () -> int
    """MP_CHILD for workers, LAUNCHER for processes that only start ranks."""
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read(65536).split(b"\0")
    if any(b"multiprocessing" in word or word == b"torch._inductor.compile_worker" for word in words[:12]):
        return MP_CHILD
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process, "parent_process", lambda: None)() is not None:
        return MP_CHILD
    names = [os.path.basename(word) for word in words[:12]]
    if b"torchrun" in names[:4] or b"torch.distributed.run" in names or b"torch.distributed.launch" in names:
        return LAUNCHER
    return 0


def wants_offload():
    # type: () -> bool
    return bool(os.environ.get("TIGHTSHIP_OFFLOAD_PLAN") or os.environ.get("TIGHTSHIP_OFFLOAD_MEASURE"))


def arm_offload(_module):
    # type: (Any) -> None
    if not kind_of_process():
        load_later("offload_plan").arm(report)


def start():
    # type: () -> None
    run_dir = os.environ.get("TIGHTSHIP_RUN_DIR")
    calls = []  # type: List[Callable[[Any], None]]
    before = lambda: None  # type: Callable[[], None]  # noqa: E731
    takes_part = sys.version_info >= (3, 6)
    if takes_part and run_dir and os.path.isdir(os.path.join(run_dir, "ranks")):
        job = Job(run_dir)
        before = job.before_torch
        calls.append(job.after_torch)
    if takes_part and wants_offload():
        calls.append(arm_offload)
    if not calls:
        return

    def after(module):
        # type: (Any) -> None
        for call in calls:
            guarded(call, module)

    if "torch" in sys.modules:
        after(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, ImportWatch("torch", before, after))


def run_the_next_sitecustomize():
    # type: () -> None
    """Import `sitecustomize` again without our folder on sys.path, as Python would have done without us."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    ours = sys.modules.pop(__name__, None)
    try:
        import sitecustomize as _next  # type: ignore[import-not-found]
    except ImportError as error:
        if ours is not None:
            sys.modules[__name__] = ours
        if getattr(error, "name", __name__) != __name__:
            raise


if __name__ == "sitecustomize":
    guarded(start)
    run_the_next_sitecustomize()
