"""A token in a file that only its owner can read, and to which server a client shows it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from tightship_platform.errors import Invalid, TokenWithheld

if TYPE_CHECKING:
    from tightship_platform.settings import Settings

PREFIX = "ts_"
"""Begins every token that we make, so that scanners for leaked secrets can find it."""
_MOST = 1024


def new_token() -> str:
    """A token that nobody can guess: 256 bits."""
    import secrets  # slow to import

    return PREFIX + secrets.token_urlsafe(32)


def local_token_path(home: Path) -> Path:
    """Where the token of this machine's user lies; see [Note: one local user] in `api.auth`."""
    return home / "token"


def make_token(path: Path) -> str:
    """The token in the file, which is made with a new one where it is not there; of many who do so, one makes it.

    :raises Invalid: the file cannot be made, others can read the one that is there, or it holds no token.
    """
    return read_token(path) or _write(path, new_token(), replace=False) or read_token(path)


def write_token(path: Path, token: str) -> None:
    """Keep the token in the file, which is made with mode 0600, or replaced whole.

    :raises Invalid: the file cannot be written.
    """
    _write(path, token, replace=True)


def _write(path: Path, token: str, *, replace: bool) -> str:
    """The token, when the file holds it now; empty: there is another one, which stays."""
    draft = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                file.write(f"{token}\n")
                file.flush()
                os.fsync(fd)
            return token if _put(draft, path, replace=replace) else ""
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise Invalid("Token file", str(path), f"a file that can be written ({error.strerror})") from error


def _put(draft: Path, path: Path, *, replace: bool) -> bool:
    if replace:
        draft.replace(path)
        return True
    try:
        os.link(draft, path)  # unlike a rename, it replaces nothing
    except FileExistsError:
        return False
    return True


def read_token(path: Path) -> str:
    """The token in the file; empty when there is none.

    :raises Invalid: others can read the file, or it holds no token.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Invalid("Token file", str(path), f"a file that can be read ({error.strerror})") from error
    try:
        status = os.fstat(fd)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
            expected = f"a file of user {os.geteuid()} with mode 600, not one of {status.st_uid} with {mode:o}"
            raise Invalid("Token file", str(path), expected)
        content = os.read(fd, _MOST + 1)
    finally:
        os.close(fd)
    token = content.decode("ascii", "replace").strip()
    if not token.isascii() or not token.isprintable() or " " in token or not 0 < len(token) <= _MOST:
        raise Invalid("Token file", str(path), "one token and nothing else")
    return token


# ---- what a client proves itself with --------------------------------------------------------------------------------

_LISTENS = "0A"


def is_loopback(host: str) -> bool:
    """Whether a listen address (or a caller's) is this machine only."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class Credentials(Protocol):
    """What a client proves itself with."""

    def token(self, host: str, port: int) -> str | None:
        """For a request to this server; None: none.

        :raises TokenWithheld: it is not to be shown to what listens there.
        """


class LocalUser:
    """The token of this home's user, where there is one, for nobody but that user's server.

    See [Note: one local user] in `api.auth`.

    It is read each time: a server that starts later may have made it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def token(self, host: str, port: int) -> str | None:
        """The token; None: there is none, or nobody listens.

        :raises TokenWithheld: the file is of no use, or another user listens there.
        """
        try:
            token = read_token(local_token_path(self._settings.home))
        except Invalid as error:
            raise TokenWithheld(self._settings.server, str(error)) from error
        if not token:
            return None
        uids = listening_users(host, port)
        strangers = uids - {os.geteuid(), 0}
        if strangers:
            raise TokenWithheld(self._settings.server, f"another user, {min(strangers)}, listens there")
        return token if uids else None


class _Given:
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self, host: str, port: int) -> str | None:
        """The one that is set."""
        return self._token


def credentials(settings: Settings) -> Credentials | None:
    """What a client of these settings proves itself with; None: nothing."""
    if settings.token:
        return _Given(settings.token)
    try:
        host = urlsplit(settings.server).hostname or ""
    except ValueError:  # no URL; the client says so
        return None
    return LocalUser(settings) if is_loopback(host) else None


def listening_users(host: str, port: int) -> set[int]:
    """Whose sockets take connections to a loopback address; empty: nobody listens there.

    Source: proc_pid_net(5), /proc/net/tcp.
    """
    listeners: dict[str, set[int]] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), Path(f"/proc/net/{name}").open(encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if len(fields) > 7 and fields[3] == _LISTENS:
                    address, _, at = fields[1].partition(":")
                    if int(at, 16) == port:
                        listeners.setdefault(address, set()).add(int(fields[7]))
    uids: set[int] = set()
    for address in ("127.0.0.1", "::1") if host == "localhost" else (host.partition("%")[0],):
        # The kernel prefers a socket of the very address, then one of the same family.
        order = (address, f"::ffff:{address}", "0.0.0.0", "::") if "." in address else (address, "::")  # noqa: S104
        uids |= next((found for one in order if (found := listeners.get(_as_kernel(one)))), set())
    return uids


def _as_kernel(address: str) -> str:
    """An address as /proc/net/tcp writes it: groups of four bytes, each in the machine's own order."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    groups = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(group, 'little'):08X}" for group in groups)
