"""The one place that reads the environment (`TIGHTSHIP_*`) and `tightship.toml`.

Precedence: environment, then `tightship.toml` in `$TIGHTSHIP_HOME` (or the file that `TIGHTSHIP_CONFIG` names),
then the defaults of the embedded mode. Embedded and distributed installs differ in URLs only.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tightship_platform.errors import Invalid
from tightship_platform.logs import FORMATS

DEFAULT_PORT = 8050
DEFAULT_SERVER = f"http://127.0.0.1:{DEFAULT_PORT}"
ALL_RUNS, LAUNCHED_RUNS = "all", "launched"
"""Runs that an agent reports."""
_DAYS = (36_500, "days")
_SECONDS = (86_400, "seconds")
_HOURS = (8760, "hours")
_REQUESTS = (1_000_000, "requests")
_WHOLE = {
    "upload_max_bytes": (10**15, "bytes"),
    "trace_max_bytes": (10**15, "bytes"),
    "keep_days": _DAYS,
    "keep_rollup_days": _DAYS,
    "keep_trace_days": _DAYS,
    "keep_run_days": _DAYS,
    "keep_capture_days": _DAYS,
    "keep_host_days": _DAYS,
    "keep_audit_days": _DAYS,
    "database_statement_s": _SECONDS,
    "database_lock_s": _SECONDS,
    "database_idle_s": _SECONDS,
    "database_silent_s": _SECONDS,
    "database_pool_s": _SECONDS,
    "drain_s": _SECONDS,
    "requests_per_token": _REQUESTS,
    "requests_per_host": _REQUESTS,
    "sso_session_h": _HOURS,
}
"""Settings that are whole numbers: the largest one, and what they count."""
_FILES = ("ca_file", "tls_cert_file", "tls_key_file", "sso_ca_file")


def default_home() -> Path:
    """Where an installation of this user has its home, unless a setting says otherwise."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "tightship"


def runtime_dirs(uid: int) -> tuple[Path, ...]:
    """Where jobs of a user keep their run directories, unless a setting says otherwise: the first that is theirs.

    Anybody may make the first one. The second is made by nobody else, but ends with the user's last login, whatever
    still runs, and lies in memory, which traces of gigabytes would fill: hence the order.
    """
    return Path(f"/tmp/tightship-{uid}"), Path(f"/run/user/{uid}/tightship")  # noqa: S108


def _default_runtime_dir() -> Path:
    choices = runtime_dirs(os.getuid())
    return next((path for path in choices if _is_ours(path)), choices[0])


def _is_ours(path: Path) -> bool:
    """A folder of this user that nobody else can write to, or none, which can be made."""
    try:
        status = os.lstat(path)
    except OSError:
        return os.access(path.parent, os.W_OK | os.X_OK)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of tightship. Each is read from `TIGHTSHIP_<NAME>` or from `<name>` in tightship.toml."""

    home: Path = field(default_factory=default_home)
    """Folder of the embedded database, broker, artifacts, spool and logs."""
    database_url: str = ""
    """SQLAlchemy URL; default: SQLite in `home`."""
    broker_url: str = ""
    """Celery broker; default: `filesystem://` under `home`."""
    artifacts_url: str = ""
    """fsspec URL of the trace store; default: a folder under `home`."""
    server: str = DEFAULT_SERVER
    """Where agents, launchers and the command line find the API."""
    public_url: str = ""
    """Where browsers find the server, when that is a proxy before it; empty: by the address that it listens on."""
    token: str = ""
    """Bearer token that clients send; empty: to a server on this machine, the one of the user who runs it."""
    ca_file: Path | None = None
    """PEM file of the only authorities that may have signed an https server's certificate; default: the public ones."""
    tls_cert_file: Path | None = None
    """PEM file of the server's own certificate, followed by its chain; default: the server speaks plain HTTP."""
    tls_key_file: Path | None = None
    """PEM file of that certificate's key, without a password; default: it is in `tls_cert_file`."""
    sso_issuer: str = ""
    """Issuer URL of the OpenID Connect provider by which people log in to the pages; empty: by tokens only."""
    sso_client_id: str = ""
    """Name under which the provider knows the server."""
    sso_client_secret: str = ""
    """The secret that goes with it; empty: the provider asks for none."""
    sso_groups: str = ""
    """Who may log in: `GROUP=SCOPE,…@TEAM; …`, of which the first that a person is in counts."""
    sso_groups_claim: str = "groups"
    """Claim of the provider's ID token that lists a person's groups."""
    sso_oidc_scopes: str = "openid profile email"
    """What the provider is asked for; some list groups only where `groups` is among it."""
    sso_session_h: int = 12
    """Hours after which a session ends that began by single sign-on."""
    sso_ca_file: Path | None = None
    """PEM file of the only authorities that may have signed the provider's certificate; default: the public ones."""
    metrics_address: str = ""
    """`host:port` at which an agent or a worker answers `GET /metrics`, without a token; empty: nowhere."""
    log_format: str = "text"
    """`text`, or `json`: one object per line."""
    runtime_dir: Path = field(default_factory=_default_runtime_dir)
    """Where launched jobs keep their Kineto socket and step counters; short, because socket paths end at 108 bytes."""
    host_name: str = ""
    """Name under which the agent reports this host; default: the system's host name."""
    agent_runs: str = ALL_RUNS
    """Runs that the agent reports: `all`, or `launched`: none but those that `tightship run` started."""
    upload_max_bytes: int = 4 * 1024**3
    """Largest trace file that the server accepts."""
    trace_max_bytes: int = 8 * 1024**3
    """Largest trace file, as Kineto writes it, that an agent packs and delivers."""
    keep_days: int = 30
    """Days for which samples and step counts are kept; 0: for ever."""
    keep_rollup_days: int = 400
    """Days for which means per minute are kept (those per hour stay as long as their run); 0: for ever."""
    keep_trace_days: int = 90
    """Days for which trace files are kept (what was found in them stays); 0: for ever."""
    keep_run_days: int = 0
    """Days for which runs are kept, with all that is known of them but their device time; 0: for ever."""
    keep_capture_days: int = 0
    """Days for which captures are kept, with their traces and what was found in them; 0: as long as their run."""
    keep_host_days: int = 0
    """Days after which a host that is not heard of is forgotten; 0: never."""
    keep_audit_days: int = 400
    """Days for which it is known who did what; 0: for ever."""
    database_statement_s: int = 20
    """Seconds that PostgreSQL may take for a statement of a request; less than the 30 s that clients wait. 0: any."""
    database_lock_s: int = 10
    """Seconds that a request's statement may wait for a lock of another on PostgreSQL; 0: any."""
    database_idle_s: int = 60
    """Seconds after which PostgreSQL ends a request's transaction in which nothing happens; 0: never."""
    database_silent_s: int = 15
    """Seconds after which a connection to PostgreSQL whose other end is gone is given up; 0: what the system does."""
    database_pool_s: int = 5
    """Seconds that a request waits for a free connection to the database."""
    drain_s: int = 20
    """Seconds that uploads in progress get when the server is asked to end; shorter than what kills it waits."""
    requests_per_token: int = 5000
    """Requests a second that a server process takes with one token; 0: any number."""
    requests_per_host: int = 50
    """Requests a second that a server process takes from the agent of one host; 0: any number."""

    def __post_init__(self) -> None:
        if not self.server.startswith(("http://", "https://")):
            raise Invalid("TIGHTSHIP_SERVER", self.server, "an http:// or https:// URL")
        # <runtime_dir>/<run key>/dynoconfigclient<uuid>, where the job's Kineto listens, has to fit 107 bytes.
        if len(os.fsencode(self.runtime_dir)) > 36:
            raise Invalid("TIGHTSHIP_RUNTIME_DIR", str(self.runtime_dir), "a path of at most 36 bytes")
        if self.log_format not in FORMATS:
            raise Invalid("TIGHTSHIP_LOG_FORMAT", self.log_format, f"one of {', '.join(FORMATS)}")
        if self.agent_runs not in (ALL_RUNS, LAUNCHED_RUNS):
            raise Invalid("TIGHTSHIP_AGENT_RUNS", self.agent_runs, f"{ALL_RUNS} or {LAUNCHED_RUNS}")
        if self.metrics_address and not _is_address(self.metrics_address):
            raise Invalid("TIGHTSHIP_METRICS_ADDRESS", self.metrics_address, "host:port, such as 127.0.0.1:9105")
        for name in ("upload_max_bytes", "trace_max_bytes"):
            if getattr(self, name) <= 0:
                raise Invalid(f"TIGHTSHIP_{name.upper()}", getattr(self, name), "a positive number of bytes")
        for name in ("keep_rollup_days", "keep_run_days", "keep_capture_days", "keep_host_days"):
            days = getattr(self, name)
            if 0 < days < (self.keep_days or days + 1):
                least = f"TIGHTSHIP_KEEP_DAYS ({self.keep_days or 'for ever'})"
                raise Invalid(f"TIGHTSHIP_{name.upper()}", days, f"at least {least}, or 0 for ever")
        if not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise Invalid("TIGHTSHIP_TOKEN", "(not shown)", "printable ASCII characters without spaces")
        object.__setattr__(self, "server", self.server.rstrip("/"))
        object.__setattr__(self, "public_url", _origin(self.public_url))
        defaults = {
            "database_url": f"sqlite:///{self.home / 'tightship.db'}",
            "broker_url": "filesystem://",
            "artifacts_url": str(self.home / "artifacts"),
            "host_name": os.uname().nodename,
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)

    @property
    def spool_dir(self) -> Path:
        """Records that wait for the server."""
        return self.home / "spool"


def _is_address(text: str) -> bool:
    match = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", text, re.ASCII)
    return match is not None and 0 < int(match[1]) <= 65_535


def _origin(url: str) -> str:
    """The URL as a browser writes it in an Origin header; empty stays empty.

    :raises Invalid: it is more or less than scheme, host and port.
    """
    if not url:
        return ""
    match = re.fullmatch(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(\d{1,5}))?/?", url.lower(), re.ASCII)
    if match is None:
        raise Invalid("TIGHTSHIP_PUBLIC_URL", url, "an http:// or https:// URL without a path")
    scheme, host, port = match.groups()
    usual = port is None or int(port) == {"http": 80, "https": 443}[scheme]
    return f"{scheme}://{host}" if usual else f"{scheme}://{host}:{int(port)}"


def _read_file(path: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise Invalid("Settings file", str(path), f"readable TOML ({error})") from error
    known = {f.name for f in fields(Settings)}
    for name in values:
        if name not in known:
            raise Invalid(f"Setting in {path}", name, f"one of {', '.join(sorted(known))}")
    return values


def _coerce(name: str, value: Any) -> Any:
    if name in ("home", "runtime_dir"):
        return Path(str(value)).expanduser().absolute()
    if name in _FILES:
        return Path(str(value)).expanduser().absolute() if value else None
    if name in _WHOLE:
        most, unit = _WHOLE[name]
        if not re.fullmatch(r"\d{1,15}", str(value), re.ASCII) or int(value) > most:
            raise Invalid(f"TIGHTSHIP_{name.upper()}", value, f"a whole number of {unit}")
        return int(value)
    if not isinstance(value, str):
        raise Invalid(f"Setting {name}", value, "a string")
    return value


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in force for this process.

    :raises Invalid: a value or the file is not acceptable.
    """
    env = os.environ if environ is None else environ
    home = _coerce("home", env["TIGHTSHIP_HOME"]) if env.get("TIGHTSHIP_HOME") else default_home()
    values = _read_file(Path(env.get("TIGHTSHIP_CONFIG") or home / "tightship.toml"))
    values["home"] = home
    for f in fields(Settings):
        text = env.get(f"TIGHTSHIP_{f.name.upper()}")
        if text:
            values[f.name] = text
    return Settings(**{name: _coerce(name, value) for name, value in values.items()})
