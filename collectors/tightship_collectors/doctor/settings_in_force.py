"""Every setting, its value, and where it came from."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tightship_collectors.doctor.check import OK, Check
from tightship_platform.settings import Settings


def settings_checks(settings: Settings) -> Iterator[Check]:
    """One line per setting; passwords and tokens are not shown."""
    file = Path(os.environ.get("TIGHTSHIP_CONFIG") or settings.home / "tightship.toml")
    in_file = _values(file)
    for field in dataclasses.fields(Settings):
        variable = f"TIGHTSHIP_{field.name.upper()}"
        if os.environ.get(variable):
            source = f"environment, {variable}"
        elif field.name in in_file and field.name != "home":
            source = str(file)
        else:
            source = "default"
        yield Check(check=f"setting {field.name}", state=OK, detail=f"{_shown(field.name, settings)} ({source})")


def _values(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _shown(name: str, settings: Settings) -> str:
    value = str(getattr(settings, name))
    if name in ("token", "sso_client_secret"):
        return "set, not shown" if value else "none"
    if getattr(settings, name) in (None, ""):
        return "none"
    if name.endswith("_url") and "@" in value:
        parts = urlsplit(value)
        host = parts.netloc.rpartition("@")[2]
        user = parts.netloc.rpartition("@")[0].partition(":")[0]
        return urlunsplit(parts._replace(netloc=f"{user}:***@{host}"))
    return value
