"""The private directory of a run: `<runtime_dir>/<run key>/`.

    run.json      the RunRecord as JSON, replaced as a whole
    kineto.conf   how often the job's Kineto asks for captures
    dynolog       the agent's socket
    ranks/<pid>   control file of each process that imported torch (control_file.py)
    traces/       where Kineto writes

Everything is the job's user's and nobody else's (0700). The launcher holds a lock on the directory while it lives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tightship_collectors.jobs.control_file import FOLDER as RANKS
from tightship_collectors.jobs.control_file import rank_path, read_rank_file
from tightship_collectors.jobs.ranks import read_ranks
from tightship_collectors.jobs.user_folder import acting_as
from tightship_platform.errors import Invalid
from tightship_platform.results.run_record import RunRecord
from tightship_platform.settings import runtime_dirs

RECORD = "run.json"
KINETO_CONF = "kineto.conf"
TRACES = "traces"
POLL_S = 1
"""How often a job asks for captures; Kineto's own default of 5 s would make every capture wait longer."""
STALE_S = 86_400
"""A directory that nobody lives in is removed when it is older than this …"""
IDLE_S = 3_600
"""… or than this, where no trace waits in it for an agent that is away."""
USER_CONF_MAX_BYTES = 65_536

_KEY = re.compile(r"[0-9a-f]{16}", re.ASCII)
_RUN_DIR = b"TIGHTSHIP_RUN_DIR="


class RunDir:
    """A run's directory, held by its launcher."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @classmethod
    def create(cls, runtime_dir: Path, key: str, *, kineto_conf: str = "") -> RunDir:
        """Make `<runtime_dir>/<key>` with everything that the job needs in it.

        :param kineto_conf: settings of the user's own Kineto config; ours are added.
        :raises Invalid: the runtime directory is not private to this user.
        :raises OSError: the directory cannot be made, or the disk is full.
        """
        make_private(runtime_dir)
        path = runtime_dir / key
        path.mkdir(mode=0o700)
        try:
            path.chmod(0o700)
            for name in (RANKS, TRACES):
                (path / name).mkdir(mode=0o700)
                (path / name).chmod(0o700)
            conf = f"{kineto_conf.rstrip()}\nON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS={POLL_S}\n".lstrip()
            replace_file(path / KINETO_CONF, conf.encode("utf-8", "surrogateescape"))
            return cls(path)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def write_record(self, record: RunRecord) -> None:
        """Replace run.json.

        :raises OSError: it cannot be written; what was there before is still whole.
        """
        replace_file(self.path / RECORD, encode_record(record))

    def close(self) -> bool:
        """Remove the directory unless somebody still needs it; True when it is gone."""
        try:
            if is_needed(self.path):
                return False
            shutil.rmtree(self.path, ignore_errors=True)
            return not self.path.exists()
        finally:
            os.close(self._lock)


def encode_record(record: RunRecord) -> bytes:
    """A run record as it lies in run.json and in the spool."""
    return json.dumps(dataclasses.asdict(record)).encode()


def make_private(path: Path) -> None:
    """Make `path` a directory of this user that nobody else can write, or make sure that it is one.

    :raises Invalid: it is a link, belongs to somebody else, or others may write to it: they could lead the job's socket
        and traces to a place of theirs.
    :raises OSError: it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    status = os.lstat(path)
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    if not private:
        seen = f"{path} (user {status.st_uid}, mode {stat.filemode(status.st_mode)})"
        expected = "a directory of your own that nobody else can write; have root remove it, or set another"
        raise Invalid("TIGHTSHIP_RUNTIME_DIR", seen, expected)


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write beside and rename: readers see the old content or the new, never half of it.

    :param durable: it has to survive a power cut; that costs the wait for the disk.
    :raises OSError: the disk is full, say; nothing is left behind.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # whatever the umask took away
            file.write(content)
            file.flush()
            if durable:
                os.fsync(fd)
        draft.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def is_needed(path: Path) -> bool:
    """A trace waits there, a capture is in flight, or a process that asks for captures still lives."""
    with contextlib.suppress(OSError):
        if any((path / TRACES).iterdir()):
            return True
        uid = path.lstat().st_uid
        for entry in (path / RANKS).iterdir():
            if entry.name.isascii() and entry.name.isdigit():
                file = read_rank_file(rank_path(path, int(entry.name)), uid=uid)
                if file is not None and file.capture_in_flight and not file.cancelled:
                    return True
    return bool(read_ranks(path))


def remove_stale(runtime_dir: Path, *, uid: int | None = None, now_s: float | None = None) -> list[Path]:
    """Remove directories of runs that ended without a launcher to clean up; returns those removed.

    One goes when it is older than IDLE_S, or than STALE_S where something waits in it, no launcher holds it, and no
    process names it in its environment.

    :param uid: whose; what others than this process's user have is removed with that user's rights alone.
    """
    now_s, uid = time.time() if now_s is None else now_s, os.geteuid() if uid is None else uid
    aged = list(_aged(runtime_dir, now_s - IDLE_S, uid))
    inhabited = _inhabited() if aged else set()
    removed = []
    with acting_as(uid):
        for path, since_s in aged:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fsencode(path) not in inhabited and (since_s < now_s - STALE_S or not is_needed(path)):
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(path)
            except OSError:
                continue  # its launcher lives
            finally:
                os.close(fd)
    return removed


def _aged(runtime_dir: Path, before_s: float, uid: int) -> Iterator[tuple[Path, float]]:
    try:
        entries = list(os.scandir(runtime_dir))
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == uid
            if ours and status.st_mtime < before_s and _KEY.fullmatch(entry.name):
                yield Path(entry.path), status.st_mtime


def _inhabited() -> set[bytes]:
    """Run directories that processes name in their environment, as far as it can be read."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for variable in (process / "environ").read_bytes().split(b"\0"):
                    if variable.startswith(_RUN_DIR):
                        found.add(variable.removeprefix(_RUN_DIR))
    return found


def taken_runtime_dir(runtime_dir: Path) -> Path | None:
    """Where this user's runs would be, had not somebody else made that directory; null: nobody did."""
    choices = runtime_dirs(os.getuid())
    return choices[0] if runtime_dir in choices[1:] else None


def live_run_dir(environ: Mapping[str, str]) -> Path | None:
    """The directory of the run that this process already belongs to; None when it belongs to none that lives."""
    key, place = environ.get("TIGHTSHIP_RUN", ""), environ.get("TIGHTSHIP_RUN_DIR", "")
    if not _KEY.fullmatch(key) or not place.startswith("/") or Path(place).name != key:
        return None
    try:
        status = os.lstat(place)
        record = json.loads((Path(place) / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return Path(place) if ours and isinstance(record, dict) and record.get("end_ns") is None else None


def read_user_conf(environ: Mapping[str, str]) -> str:
    """What the user's own KINETO_CONFIG says; empty when there is none to read."""
    named = environ.get("KINETO_CONFIG")
    if not named:
        return ""
    try:
        with Path(named).open("rb") as file:
            return file.read(USER_CONF_MAX_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
