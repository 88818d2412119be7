"""Errors that a person is expected to read: each says what, the value seen, and what to do.

A `TightshipError` reaches the command line as one line and exit code 2, and the API as a JSON body with
`http_status`. Anything else is a defect and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightship_platform.redaction import hide_secrets


class TightshipError(Exception):
    """An expected failure, fit to be shown as it is. The message is one line."""

    http_status = 400
    exit_code = 2


class NotFound(TightshipError):
    """Something was named that does not exist."""

    http_status = 404

    def __init__(self, kind: str, name: str, hint: str) -> None:
        super().__init__(f"No {kind} named {name!r}; {hint}")


class Ambiguous(TightshipError):
    """An id, or the beginning of one, that several things have."""

    http_status = 409

    def __init__(
        self, what: str, text: str, candidates: Sequence[str], *, more: int = 0, hint: str = "give more of it"
    ) -> None:
        rest = f" and {more} more" if more else ""
        super().__init__(f"The {what} {text!r} is ambiguous: {', '.join(candidates)}{rest}; {hint}")


class Invalid(TightshipError):
    """A value from outside is not acceptable."""

    http_status = 422

    def __init__(self, what: str, value: object, expected: str) -> None:
        shown = hide_secrets(repr(value))
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{what} is {shown}; expected {expected}")


class Conflict(TightshipError):
    """The thing asked for cannot be done in the present state."""

    http_status = 409


class Gone(TightshipError):
    """What this is about was deleted, and nothing more of it is taken."""

    http_status = 410


class Unauthorized(TightshipError):
    """No valid token came with the request."""

    http_status = 401


class Forbidden(TightshipError):
    """The token is valid but lacks the scope that the route declares."""

    http_status = 403


class TooLarge(TightshipError):
    """An upload exceeds what the server accepts."""

    http_status = 413


class AskedToWait(TightshipError):
    """Not now: the caller is to come again after `wait_s`."""

    http_status = 503

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class ServerUnreachable(TightshipError):
    """The tightship server does not answer."""

    http_status = 503

    def __init__(self, server: str, why: str) -> None:
        super().__init__(
            f"No tightship server answers at {server} ({why}); start one with `tightship up` or set TIGHTSHIP_SERVER"
        )


class CertificateRefused(ServerUnreachable):
    """What answers at the server's address cannot prove that it is the server."""

    def __init__(self, server: str, why: str) -> None:
        TightshipError.__init__(
            self,
            f"The certificate of {server} is refused ({why}); "
            "set TIGHTSHIP_CA_FILE to the certificate of the authority that signed it, and TIGHTSHIP_SERVER to a name "
            "that it was made for",
        )


class TokenWithheld(ServerUnreachable):
    """The token of this machine's user is not sent to what answers at the server's address."""

    def __init__(self, server: str, why: str) -> None:
        TightshipError.__init__(
            self,
            f"Your token is not sent to {server} ({why}); "
            "set TIGHTSHIP_SERVER to your own server, or TIGHTSHIP_TOKEN to a token for that one",
        )


class SchemaMismatch(TightshipError):
    """The database carries another schema version than this release."""

    http_status = 503


class DatabaseUnreachable(TightshipError):
    """The database that TIGHTSHIP_DATABASE_URL names cannot be opened."""

    http_status = 503
