"""A command whose packages are missing says so in one line, before it starts anything."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tightship_platform import cli, extras
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.extras import MissingExtra

LINES = ["click>=8", 'no-such-package>=1 ; extra == "analyze"', "other-package; extra == 'gcs'"]


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each extra lacks what it needs."""
    monkeypatch.setattr("importlib.metadata.requires", lambda name: LINES)


def test_what_an_extra_needs_stands_in_the_metadata() -> None:
    assert {"numpy", "msgspec", "isal"} <= set(extras.packages_of("analyze"))
    assert extras.packages_of("no-such-extra") == []
    assert (extras.extra_of("numpy.linalg"), extras.extra_of("yaml"), extras.extra_of("fastapi")) == (
        "analyze",
        "offload",
        "server",
    )
    assert extras.extra_of("no_such_module") is None


def test_every_extra_of_a_command_exists() -> None:
    named = {extra for command in cli.COMMANDS.values() for extra in command.extras}
    assert named <= set(extras.NAMES) and all(map(extras.packages_of, named))


@pytest.mark.usefixtures("lacking")
def test_a_command_names_its_extra_and_starts_nothing() -> None:
    ended = CliRunner().invoke(cli.root, ["analyze", "/no/such/trace.json"])
    assert str(ended.exception) == (
        "`analyze` needs no-such-package, which is not installed; pip install 'tightship[analyze]'"
    )
    assert CliRunner().invoke(cli.root, ["analyze", "--help"]).exit_code == 0


@pytest.mark.usefixtures("lacking")
def test_a_store_names_its_driver() -> None:
    with pytest.raises(MissingExtra, match=r"gs:// needs other-package, .*tightship\[gcs\]"):
        ArtifactStore("gs://bucket/traces")


def test_a_module_that_no_extra_brings_stays_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise ModuleNotFoundError("No module named 'numpty'", name="numpty")

    monkeypatch.setattr(cli, "root", broken)
    with pytest.raises(ModuleNotFoundError):
        cli.main()
