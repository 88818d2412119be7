"""What a server needs of its machine, had or refused before what serves is imported: certificate, key and port."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

from tightship_platform.errors import Conflict, Invalid
from tightship_platform.settings import Settings


def certificate_files(settings: Settings) -> tuple[Path | None, Path | None]:
    """The files of the server's certificate and key, both checked.

    :raises Invalid: certificate or key cannot be read, or they do not belong together.
    """
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None:
        if key is not None:
            raise Invalid("TIGHTSHIP_TLS_KEY_FILE", str(key), "TIGHTSHIP_TLS_CERT_FILE beside it")
        return None, None
    for name, path in (("TIGHTSHIP_TLS_CERT_FILE", certificate), ("TIGHTSHIP_TLS_KEY_FILE", key or certificate)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise Invalid(name, str(path), f"a file that the server may read ({error.strerror})") from error
    try:
        # Here rather than by uvicorn, which would ask the terminal for the password of a key that has one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=str)
    except ssl.SSLError as error:
        expected = (
            f"a PEM certificate whose key, without a password, is in {key or certificate} ({error.reason or error})"
        )
        raise Invalid("TIGHTSHIP_TLS_CERT_FILE", str(certificate), expected) from error
    return certificate, key


def bind(host: str, port: int) -> socket.socket:
    """A socket with the address, taken before anything else is done: the port is either ours or the command ends.

    It does not listen: until the server can answer, clients are turned away and ask another one, where they would
    wait for this one's whole start.

    :raises Conflict: the port is in use.
    :raises Invalid: the host is no address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise Invalid("--host", host, "an address or name of this machine") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"Port {port} on {host} is in use; stop what listens there or choose another with --port"
            ) from error
        raise Invalid("--host and --port", f"{host}:{port}", f"an address to listen on ({error.strerror})") from error
    return listener
