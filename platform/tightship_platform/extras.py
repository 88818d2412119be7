"""Extras: what of this installation's optional packages is there, and the one line that says what is missing.

What an extra needs stands in pyproject.toml alone, and is read from the installed metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tightship_platform.errors import TightshipError

NAMES = {
    "analyze": "trace files on this machine",
    "stragglers": "tables of a job's operations",
    "offload": "plans, and training by them",
    "server": "server, worker, dashboard and database",
    "demo": "the demo's training jobs",
    "s3": "artifacts on S3",
    "gcs": "artifacts on Google Cloud Storage",
    "azure": "artifacts on Azure",
}
"""What each is for; a package that several have is offered with the first of them."""
_STORES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""Protocol of a URL → the extra with its driver."""
_MODULES = {"yaml": "pyyaml", "sklearn": "scikit-learn"}
"""Modules that are named otherwise than what is installed."""
_REQUIREMENT = re.compile(r"""\s*([\w.-]+).*;.*\bextra\s*==\s*["']([\w.-]+)["']""", re.ASCII)


class MissingExtra(TightshipError):
    """A command needs packages that are not installed."""

    def __init__(self, what: str, extras: Iterable[str], lacking: str) -> None:
        super().__init__(f"{what} needs {lacking}, which is not installed; pip install 'tightship[{','.join(extras)}]'")


def packages_of(extra: str) -> list[str]:
    """Names of the packages that an extra needs, as they are installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("tightship") or ()
    except PackageNotFoundError:  # run from its sources
        lines = ()
    found = [_REQUIREMENT.match(line) for line in lines]
    return [match[1].lower() for match in found if match and match[2] == extra and match[1] != "tightship"]


def lacking(extra: str) -> list[str]:
    """Those of an extra's packages that are not installed."""
    return [package for package in packages_of(extra) if not _is_installed(package)]


def require(what: str, extras: Iterable[str]) -> None:
    """Before anything is started.

    :raises MissingExtra: a package is not there.
    """
    extras = list(extras)
    for extra in extras:
        if missing := lacking(extra):
            raise MissingExtra(what, extras, missing[0])


def require_driver(url: str) -> None:
    """Before a URL is opened.

    :raises MissingExtra: the driver of its protocol is not there.
    """
    protocol = url.partition("://")[0].lower()
    if protocol in _STORES:
        require(f"{protocol}://", [_STORES[protocol]])


def extra_of(module: str) -> str | None:
    """The extra that brings a module; None where none does."""
    top = module.partition(".")[0]
    package = _MODULES.get(top, top.replace("_", "-")).lower()
    return next((extra for extra in NAMES if package in packages_of(extra)), None)


def _is_installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
