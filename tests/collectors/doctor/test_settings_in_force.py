"""The settings that are in force: each with its value and its place, and none of the secrets."""

from __future__ import annotations

import pytest

from tightship_collectors.doctor.settings_in_force import settings_checks
from tightship_platform.settings import load_settings


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"TIGHTSHIP_TOKEN": "t0p-s3cret", "TIGHTSHIP_SSO_CLIENT_SECRET": "0f-the-cl1ent"}
    for name, value in (secrets | {"TIGHTSHIP_BROKER_URL": "redis://u:pa55@h:6379/0"}).items():
        monkeypatch.setenv(name, value)
    shown = {check.check: check.detail for check in settings_checks(load_settings())}
    assert shown["setting token"] == "set, not shown (environment, TIGHTSHIP_TOKEN)"
    assert shown["setting sso_client_secret"] == "set, not shown (environment, TIGHTSHIP_SSO_CLIENT_SECRET)"
    assert not [value for value in (*secrets.values(), "pa55") if value in str(shown)]


def test_what_is_empty_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIGHTSHIP_PUBLIC_URL", raising=False)
    shown = {check.check: check.detail for check in settings_checks(load_settings())}
    assert shown["setting public_url"] == shown["setting ca_file"] == "none (default)"
