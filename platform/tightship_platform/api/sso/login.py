"""One login, from the button to the person: the settings it needs, the secret that the browser keeps meanwhile, and
what their groups permit.

[Note: one secret for a login] The browser keeps one random secret in a cookie that no script sees. State, nonce and
PKCE verifier are hashes of it and of where the browser goes afterwards, so what a provider or an address bar shows of
one tells nothing of the others, and none of them is of use without the cookie. The server keeps nothing until the login
has come about; then it keeps the hash of the state, so that the same login begins one session only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlencode, urlsplit

from authlib.oauth2.rfc7636 import create_s256_code_challenge

from tightship_platform import validation
from tightship_platform.api.sso.addresses import CALLBACK
from tightship_platform.api.sso.groups import Grant, grant_of, read_grants
from tightship_platform.api.sso.provider import Person, Provider
from tightship_platform.api.sso.refusal import LoginRefused
from tightship_platform.errors import Invalid
from tightship_platform.settings import Settings

BEGUN_S = 600
"""A login is done within this time of its beginning."""
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_TARGET_MAX = 2000


@dataclass(frozen=True)
class Attempt:
    """A login that has begun; see [Note: one secret for a login]."""

    secret: str
    target: str
    """Where the browser goes afterwards: a path of this server."""

    @property
    def cookie(self) -> str:
        """What the browser keeps."""
        return f"{self.secret}.{quote(self.target, safe='')}"

    @classmethod
    def of_cookie(cls, value: str) -> Attempt | None:
        """The attempt that a browser keeps; None: it keeps none."""
        secret, found, target = value.partition(".")
        return cls(secret, unquote(target)) if found and _SECRET.fullmatch(secret) else None

    def derived(self, use: str) -> str:
        """The `state`, `nonce` or `verifier`: 43 characters."""
        digest = hmac.digest(self.secret.encode(), f"{use} {self.target}".encode("utf-8", "replace"), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True, kw_only=True)
class Login:
    """A login that came about."""

    person: Person
    grant: Grant
    state_sha256: str
    """Of the state that it was begun with; no other login has the same."""


class SingleSignOn:
    """Single sign-on as the settings have it.

    :raises Invalid: a setting is missing or no such thing.
    """

    def __init__(self, settings: Settings) -> None:
        _check(settings)
        self.provider = Provider(settings)
        self.begun_s = BEGUN_S
        self.session_s = settings.sso_session_h * 3600
        self.is_secure = settings.public_url.startswith("https://")
        self._grants = read_grants(settings.sso_groups)
        self._client_id = settings.sso_client_id
        self._scopes = settings.sso_oidc_scopes
        self._redirect_uri = settings.public_url + CALLBACK

    @property
    def cookie(self) -> str:
        """Name of the cookie that holds an attempt; under TLS no other server of the domain can set it."""
        return "__Host-tightship_sso" if self.is_secure else "tightship_sso"

    @property
    def shown(self) -> str:
        """The provider's name for people."""
        return urlsplit(self.provider.issuer).netloc

    def attempt(self, cookie: str) -> Attempt | None:
        """The login that a browser has begun, by the cookie that it keeps; None: it has begun none."""
        return Attempt.of_cookie(cookie)

    async def begin(self, target: str) -> tuple[str, Attempt]:
        """Where the browser has to go, and what it has to keep.

        :raises ProviderTrouble: the provider does not say where.
        """
        attempt = Attempt(secrets.token_urlsafe(32), target if len(target) <= _TARGET_MAX else "/")
        url = await self.provider.begins_at()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "scope": self._scopes,
            "state": attempt.derived("state"),
            "nonce": attempt.derived("nonce"),
            "code_challenge": create_s256_code_challenge(attempt.derived("verifier")),
            "code_challenge_method": "S256",
        }
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(query)}", attempt

    async def finish(self, attempt: Attempt | None, *, state: str, code: str, error: str) -> Login:
        """Who logged in, and what they may do.

        :param state: with which the provider sent the browser back; this and the next two are from its address.
        :param error: why there is no code.
        :raises LoginRefused: it is not this browser's login, or the person is in no group that may log in.
        :raises ProviderTrouble: the provider does not answer, or answers nonsense.
        """
        if attempt is None or not hmac.compare_digest(
            attempt.derived("state").encode(), state.encode("utf-8", "replace")
        ):
            raise LoginRefused(
                "The login is refused: it was not begun in this browser, was begun more than "
                f"{BEGUN_S // 60} minutes ago, or is done already; begin again",
                reason="state",
            )
        if error or not code:
            why = validation.line(error, 100) or "no code"
            raise LoginRefused(f"The login is refused: the provider says {why!r}", reason="provider")
        person = await self.provider.person(
            code,
            redirect_uri=self._redirect_uri,
            verifier=attempt.derived("verifier"),
            nonce=attempt.derived("nonce"),
        )
        grant = grant_of(self._grants, person.groups)
        if grant is None:
            raise LoginRefused(
                f"{person.name.removeprefix('sso:')} is in no group that may log in here; "
                "whoever runs this server names the groups in TIGHTSHIP_SSO_GROUPS",
                who=person.name,
                reason="group",
            )
        return Login(person=person, grant=grant, state_sha256=hashlib.sha256(state.encode()).hexdigest())


def _check(settings: Settings) -> None:
    issuer = urlsplit(settings.sso_issuer)
    local = issuer.scheme == "http" and issuer.hostname in ("localhost", "127.0.0.1", "::1")
    if not (issuer.scheme == "https" or local) or not issuer.hostname or issuer.query or issuer.fragment:
        raise Invalid("TIGHTSHIP_SSO_ISSUER", settings.sso_issuer, "an https:// URL without a query")
    for name, meaning in (
        ("public_url", "the address that people type into their browsers"),
        ("sso_client_id", "the name under which the provider knows this server"),
    ):
        if not getattr(settings, name):
            raise Invalid(f"TIGHTSHIP_{name.upper()}", "", f"{meaning}, which single sign-on needs")
    if "openid" not in settings.sso_oidc_scopes.split():
        raise Invalid("TIGHTSHIP_SSO_OIDC_SCOPES", settings.sso_oidc_scopes, "words that include 'openid'")
    if settings.sso_session_h < 1:
        raise Invalid("TIGHTSHIP_SSO_SESSION_H", settings.sso_session_h, "at least 1 hour")
