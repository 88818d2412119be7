"""The token that `tightship agent enrol` got for this host, kept in a file of its home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tightship_platform.settings import Settings
from tightship_platform.token_file import read_token


def token_path(settings: Settings) -> Path:
    """Where the token is kept."""
    return settings.home / "agent.token"


def with_own_token(settings: Settings) -> Settings:
    """The settings with the token of this host, unless they name another.

    :raises Invalid: the file is there and of no use.
    """
    return settings if settings.token else replace(settings, token=read_token(token_path(settings)))
