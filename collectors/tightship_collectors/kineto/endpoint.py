"""One run's daemon socket: bound safely in a folder that belongs to somebody else, receiving with credentials.

See [Note: in a user's folder].
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import re
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.jobs.user_folder import acting_as, user_folder
from tightship_collectors.kineto.protocol import MAX_DATAGRAM
from tightship_platform.units import NS_PER_S

NAME = "dynolog"
_CLIENT = re.compile(r"dynoconfigclient[0-9a-f-]{36}", re.ASCII)
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python's socket module does not name it
_UCRED = struct.Struct("iII")
_TIMESPEC = struct.Struct("qq")
_ANCILLARY_BYTES = 256
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Unservable(Exception):
    """The socket of a run cannot be bound; the message says why."""


@dataclass(frozen=True)
class Received:
    """A datagram with what the kernel knows of it."""

    data: bytes
    address: str
    pid: int
    uid: int
    time_ns: int
    """UTC time at which it was sent."""
    fault: str = ""
    """Why it is to be refused unread."""


class Endpoint:
    """The bound socket `<run_dir>/dynolog`."""

    def __init__(self, run: HostRun, bound: socket.socket, identity: tuple[int, int]) -> None:
        self.run = run
        self.socket = bound
        self.registered: set[int] = set()
        self.turn = 0
        """When the service last took datagrams from it, counted in turns."""
        self._identity = identity

    @classmethod
    def bind(cls, run: HostRun) -> Endpoint:
        """Bind the socket in place of one that a dead agent left.

        :raises Unservable: the folder is not private to the run's user, something else has the name, or another agent
            is alive behind it.
        """
        path = run.run_dir / NAME
        try:
            with user_folder(run.run_dir, run.uid) as folder:
                if os.fstat(folder).st_mode & 0o077:
                    raise Unservable(f"{run.run_dir} is not a folder private to user {run.uid}")
                _clear_stale(folder, path)
                bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                try:
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                    bound.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
                    os.fchmod(bound.fileno(), 0o600)  # before bind: the path takes its mode from the socket
                    with acting_as(run.uid):
                        bound.bind(str(path))
                    return cls(run, bound, _identity(folder, run.uid))
                except OSError:
                    bound.close()
                    raise
        except OSError as error:
            raise Unservable(f"cannot bind {path}: {error.strerror or error}") from error

    def still_bound(self) -> bool:
        """The path still leads to this socket; false once somebody removed or replaced it."""
        try:
            with user_folder(self.run.run_dir, self.run.uid) as folder:
                return _identity(folder, self.run.uid) == self._identity
        except OSError:
            return False

    def is_client_address(self, address: str) -> bool:
        """A libkineto client in this run's own folder; see [Note: whom the service answers]."""
        folder, _, name = address.rpartition("/")
        return folder == str(self.run.run_dir) and _CLIENT.fullmatch(name) is not None

    def receive(self) -> Received | None:
        """The next datagram; None when there is none.

        :raises OSError: the socket is unusable.
        """
        try:
            data, ancillary, flags, address = self.socket.recvmsg(MAX_DATAGRAM, _ANCILLARY_BYTES)
        except BlockingIOError:
            return None
        pid, uid, time_ns, fault = -1, -1, 0, ""
        for level, kind, payload in ancillary:
            if level != socket.SOL_SOCKET:
                continue
            if kind == socket.SCM_CREDENTIALS and len(payload) == _UCRED.size:
                pid, uid, _ = _UCRED.unpack(payload)
            elif kind == _SO_TIMESTAMPNS and len(payload) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(payload)
                time_ns = seconds * NS_PER_S + nanoseconds
            elif kind == socket.SCM_RIGHTS:
                # Descriptors that a sender slips in are ours as soon as they arrive: give them back.
                fault = "it carries descriptors"
                given = array.array("i")
                given.frombytes(payload[: len(payload) - len(payload) % given.itemsize])
                for fd in given:
                    os.close(fd)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            fault = "it is too long"
        text = address if isinstance(address, str) else ""  # bytes: an abstract address, or none
        return Received(data, text, pid, uid, time_ns, fault)

    def send(self, address: str, datagram: bytes) -> bool:
        """Send to a client in this run's folder; False if it is gone, full, or not what its name says."""
        try:
            with user_folder(self.run.run_dir, self.run.uid) as folder:
                handle = os.open(Path(address).name, _HANDLE, dir_fd=folder)
        except OSError:
            return False
        try:
            status = os.fstat(handle)
            if not stat.S_ISSOCK(status.st_mode) or status.st_uid != self.run.uid:
                return False
            self.socket.sendto(datagram, f"/proc/self/fd/{handle}")
            return True
        except OSError:
            return False
        finally:
            os.close(handle)

    def close(self) -> None:
        """Close the socket, and remove its path if it is still ours."""
        with contextlib.suppress(OSError), user_folder(self.run.run_dir, self.run.uid) as folder:
            if _identity(folder, self.run.uid) == self._identity:
                os.unlink(NAME, dir_fd=folder)
        self.socket.close()


def _identity(folder: int, uid: int) -> tuple[int, int]:
    """Device and inode of the socket in a run's folder.

    :raises OSError: there is none, or what has the name is not a socket of `uid` with this one name.
    """
    status = os.stat(NAME, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != uid or status.st_nlink != 1:
        raise OSError(errno.EEXIST, f"{NAME} is not a socket of user {uid}")
    return status.st_dev, status.st_ino


def _clear_stale(folder: int, path: Path) -> None:
    """Remove the socket of an agent that was killed.

    :param path: where the folder was found, for messages.
    :raises Unservable: the name is taken by something else.
    """
    try:
        handle = os.open(NAME, _HANDLE, dir_fd=folder)
    except FileNotFoundError:
        return
    try:
        status = os.fstat(handle)
        if not stat.S_ISSOCK(status.st_mode) or status.st_nlink != 1:
            raise Unservable(f"{path} is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(f"/proc/self/fd/{handle}")
    except ConnectionRefusedError:
        os.unlink(NAME, dir_fd=folder)
        return
    finally:
        os.close(handle)
    raise Unservable(f"another agent serves {path}")
