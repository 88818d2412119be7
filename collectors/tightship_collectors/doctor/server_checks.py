"""The server, as it is seen from here: health, token, clock, agent, artifact store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tightship_collectors.delivery.own_token import token_path, with_own_token
from tightship_collectors.doctor.check import NOTE, OK, WRONG, Check
from tightship_platform import __version__
from tightship_platform.client import ANSWER_S, API, CONNECT_S, credentials, server_trust, unreachable
from tightship_platform.errors import CertificateRefused, Invalid, TokenWithheld
from tightship_platform.processes.liveness import FRESH_S, liveness_age_s
from tightship_platform.results.codec import decode
from tightship_platform.results.health import Health, StoreHealth
from tightship_platform.results.host import Host
from tightship_platform.settings import Settings
from tightship_platform.token_file import local_token_path
from tightship_platform.units import NS_PER_S, now_ns, plural

MAX_SKEW_S = 2.0
"""The Date header counts whole seconds."""
LOST = (
    ("spool_dropped", "record", "it dropped {}", "the server was away for too long, or the disk is full"),
    (
        "rows_too_old",
        "row",
        "the server did not store {} older than TIGHTSHIP_KEEP_DAYS",
        "the clock of this host or of the server is wrong, or the server was away longer than it keeps samples",
    ),
    (
        "rows_refused",
        "row",
        "the server refused {} with a value that cannot be",
        "the agent's log has the first one; a clock that is a day ahead refuses all",
    ),
)
"""What did not reach the database: the heartbeat's figure, what it counts, the sentence, the advice."""
ASK_ADMIN = "make one with `tightship token create` on the server and set TIGHTSHIP_TOKEN"


def server_checks(settings: Settings) -> Iterator[Check]:
    """Everything that needs the server, or its absence."""
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    try:
        own = with_own_token(settings)
    except Invalid as error:
        yield Check(check="token", state=WRONG, detail=str(error), advice="run `tightship agent enrol` again")
        own = settings
    try:
        trust = server_trust(settings)
    except Invalid as error:
        yield Check(check="server", state=WRONG, detail=str(error), advice="correct or unset TIGHTSHIP_CA_FILE")
        yield _agent_by_liveness(settings)
        return
    with httpx.Client(
        base_url=settings.server + API, auth=credentials(own), timeout=timeout, trust_env=False, verify=trust
    ) as http:
        try:
            sent_s = time.time()
            answer = http.get("/health")
            health = _health(answer)
        except (httpx.HTTPError, ValueError, TokenWithheld) as error:
            yield _no_server(settings, error)
            yield _agent_by_liveness(settings)
            return
        yield _server(settings, health)
        yield _database(health)
        yield _broker(health)
        yield _clock(answer, (sent_s + time.time()) / 2)
        try:
            yield _enrolled(settings, http) if own.token != settings.token else _token(settings, http)
            yield _agent(settings, http)
        except (httpx.HTTPError, ValueError, KeyError, TypeError, Invalid) as error:
            detail = f"{settings.server} stopped answering as it should: {error!r}"
            yield Check(check="server", state=WRONG, detail=detail, advice="look at the server's log")
        fault = _store_fault(http)
    yield from _worker(settings)
    yield _artifacts(settings, fault)


def _health(answer: httpx.Response) -> Health:
    stranger = f"something answers with status {answer.status_code} that is not a tightship server"
    if answer.status_code not in (200, 503):
        raise ValueError(stranger)
    try:
        return decode(Health, answer.json())
    except Invalid as error:
        raise ValueError(stranger) from error


def _no_server(settings: Settings, error: Exception) -> Check:
    fault = unreachable(settings.server, error) if isinstance(error, httpx.HTTPError) else error
    if isinstance(fault, CertificateRefused | TokenWithheld):
        detail, _, advice = str(fault).partition("; ")
        return Check(check="server", state=WRONG, detail=detail, advice=advice)
    why = str(error) or type(error).__name__
    advice = "start one with `tightship up`, or set TIGHTSHIP_SERVER"
    return Check(check="server", state=WRONG, detail=f"{settings.server}: {why}", advice=advice)


def _server(settings: Settings, health: Health) -> Check:
    if health.version is None:
        return Check(check="server", state=OK, detail=f"{settings.server} answers; it shows its release to tokens only")
    detail = f"{settings.server} runs tightship {health.version}"
    if health.version != __version__:
        advice = "install the same release on both sides"
        return Check(check="server", state=NOTE, detail=f"{detail}, this host {__version__}", advice=advice)
    return Check(check="server", state=OK, detail=detail)


def _database(health: Health) -> Check:
    state, schema = health.database, health.schema
    if state == "ok":
        seen = f"; {health.reason or f'schema {schema}'}" if schema else ""
        return Check(check="database", state=OK, detail=f"the server reaches it{seen}")
    advice = "run `tightship db upgrade` on the server" if state == "another schema" else "check TIGHTSHIP_DATABASE_URL"
    return Check(check="database", state=WRONG, detail=f"{state}; schema {schema}", advice=f"{advice} there")


def _broker(health: Health) -> Check:
    if health.broker is None:
        return Check(check="broker", state=NOTE, detail="the server shows it to tokens only")
    if health.broker == "ok":
        return Check(check="broker", state=OK, detail="the server reaches it")
    advice = "check TIGHTSHIP_BROKER_URL on the server; until then nothing is analyzed"
    return Check(check="broker", state=WRONG, detail=health.broker, advice=advice)


def _clock(answer: httpx.Response, asked_s: float) -> Check:
    try:
        # The header drops the fraction: half a second is its mean.
        ahead_s = asked_s - parsedate_to_datetime(answer.headers["date"]).timestamp() - 0.5
    except (KeyError, ValueError):
        return Check(check="clock", state=NOTE, detail="the server does not report its time")
    if abs(ahead_s) <= MAX_SKEW_S:
        return Check(check="clock", state=OK, detail=f"within {MAX_SKEW_S:.0f} s of the server's")
    how = "ahead of" if ahead_s > 0 else "behind"
    detail = f"{abs(ahead_s):.0f} s {how} the server's"
    return Check(
        check="clock", state=WRONG, detail=detail, advice="synchronize both with NTP (chrony, systemd-timesyncd)"
    )


def _enrolled(settings: Settings, http: httpx.Client) -> Check:
    """The token that this host's agent finds; it is good for sending and for nothing else."""
    answer = _lease_nothing(settings, http)
    where = f"that of this host's agent, in {token_path(settings)}, is"
    if answer.is_success:
        return Check(check="token", state=OK, detail=f"{where} accepted for ingest")
    said = answer.json().get("error", f"status {answer.status_code}")
    advice = "have a new word made with `tightship token enrol`, and run `tightship agent enrol` again"
    return Check(check="token", state=WRONG, detail=f"{where} refused: {said}", advice=advice)


def _lease_nothing(settings: Settings, http: httpx.Client) -> httpx.Response:
    # No runs, so no leases: it only shows whether the scope is there.
    return http.post("/captures/lease", json={"host": settings.host_name, "runs": []})


def _token(settings: Settings, http: httpx.Client) -> Check:
    ingest = _lease_nothing(settings, http)
    read = http.get("/runs", params={"limit": 1})
    given = ingest.request.headers.get("authorization")
    source = "" if settings.token else f"that of this user, in {local_token_path(settings.home)}, is "
    what = f"{source}accepted for" if given else "none set; without one the server grants"
    granted = [scope for scope, answer in (("ingest", ingest), ("read", read)) if answer.is_success]
    if len(granted) == 2:
        return Check(check="token", state=OK, detail=f"{what} ingest and read")
    refusal = next(answer for answer in (ingest, read) if not answer.is_success)
    said = refusal.json().get("error", f"status {refusal.status_code}")
    if granted:
        return Check(check="token", state=NOTE, detail=f"{what} {granted[0]} only: {said}", advice=ASK_ADMIN)
    return Check(check="token", state=WRONG, detail=f"{what} nothing: {said}", advice=ASK_ADMIN)


def _agent(settings: Settings, http: httpx.Client) -> Check:
    answer = http.get("/hosts", params={"host": settings.host_name})
    if not answer.is_success:
        return _agent_by_liveness(settings)
    host = next((h for h in decode(list[Host], answer.json(), "hosts") if h.host == settings.host_name), None)
    if host is None:
        detail = f"the server never heard of host {settings.host_name}"
        return Check(
            check="agent", state=WRONG, detail=detail, advice="start it with `tightship agent` (or `tightship up`)"
        )
    age_s = (now_ns() - host.last_seen_ns) / NS_PER_S
    detail = f"{settings.host_name}: last heartbeat {max(0.0, age_s):.0f} s ago, release {host.agent_version}"
    if age_s > FRESH_S:
        return Check(
            check="agent", state=WRONG, detail=detail, advice="start it with `tightship agent` (or `tightship up`)"
        )
    for figure, noun, lost, advice in LOST:
        count = host.info.get(figure, 0)
        if isinstance(count, int) and count:
            said = f"{detail}; {lost.format(plural(count, noun))}"
            return Check(check="agent", state=NOTE, detail=said, advice=advice)
    return Check(check="agent", state=OK, detail=detail)


def _agent_by_liveness(settings: Settings) -> Check:
    age_s = liveness_age_s(settings.home, "agent")
    if age_s is not None and age_s <= FRESH_S:
        detail = f"alive {age_s:.0f} s ago by its file in {settings.home}; the server was not asked"
        return Check(check="agent", state=NOTE, detail=detail)
    detail = f"no sign of life in {settings.home}"
    return Check(
        check="agent", state=WRONG, detail=detail, advice="start it with `tightship agent` (or `tightship up`)"
    )


def _worker(settings: Settings) -> Iterator[Check]:
    """Only where the worker shares this home does it leave a sign of life here."""
    age_s = liveness_age_s(settings.home, "worker")
    if age_s is None:
        return
    detail = f"last sign of life {age_s:.0f} s ago in {settings.home}"
    if age_s <= FRESH_S:
        yield Check(check="worker", state=OK, detail=detail)
    else:
        advice = "start it with `tightship worker --beat` (or `tightship up`); until then nothing is analyzed"
        yield Check(check="worker", state=WRONG, detail=detail, advice=advice)


def _store_fault(http: httpx.Client) -> str | None:
    """The server's line on why it removes nothing from its store; None: nothing is wrong, or it does not answer."""
    try:
        answer = http.get("/store")
        return decode(StoreHealth, answer.json()).fault if answer.is_success else None
    except (httpx.HTTPError, ValueError, Invalid):
        return None


def _artifacts(settings: Settings, fault: str | None) -> Check:
    if fault is not None:
        detail = f"{fault}: no trace file is ever removed"
        advice = (
            "on the server: if the store is its own run `tightship db adopt-store`, else set TIGHTSHIP_ARTIFACTS_URL"
        )
        return Check(check="artifacts", state=WRONG, detail=detail, advice=advice)
    url = settings.artifacts_url
    local = urlsplit(settings.server).hostname in ("127.0.0.1", "localhost", "::1")
    if not local:
        return Check(check="artifacts", state=NOTE, detail="the server's own; not visible from this host")
    if "://" in url and not url.startswith("file://"):
        return Check(
            check="artifacts", state=NOTE, detail=f"{url.partition('://')[0]}: the server uses it at each upload"
        )
    folder = Path(url.removeprefix("file://"))
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        made = "" if existing == folder else ", is made at the first upload"
        return Check(check="artifacts", state=OK, detail=f"{folder}{made}")
    advice = "make it writable for the user of the server, or set TIGHTSHIP_ARTIFACTS_URL"
    return Check(check="artifacts", state=WRONG, detail=f"{existing} cannot be written", advice=advice)
