"""The agent's own token: fetched once with a one-time word, found by every agent of this home from then on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tightship_collectors.delivery.own_token import token_path
from tightship_platform.client import ApiClient
from tightship_platform.errors import ServerUnreachable
from tightship_platform.settings import Settings
from tightship_platform.token_file import write_token
from tightship_platform.wire import EnrolRequest


def enrol(settings: Settings, word: str) -> Path:
    """Exchange the word for this host's token and keep that; returns the file.

    :raises Invalid: the file cannot be written; the word is then unused.
    :raises ApiError: the server refuses the word.
    """
    path = token_path(settings)
    write_token(path, word)  # before the word is used up: a home that cannot be written must not cost it
    try:
        with ApiClient(replace(settings, token=word)) as api:
            answer = api.post("/hosts/enrol", EnrolRequest(host=settings.host_name))
        try:
            token = str(answer["token"])
        except (KeyError, TypeError) as error:
            raise ServerUnreachable(settings.server, "what answers there is not a tightship server") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    write_token(path, token)
    return path
