"""The root of the command line: it lists everything and imports next to nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from processes import tightship

from tightship_platform import cli
from tightship_platform.cli import GROUP, main, root

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
COMMANDS = set(PYPROJECT["project"]["entry-points"][GROUP])
HEAVY = {
    "torch", "polars", "dash", "celery", "kombu", "sqlalchemy", "fastapi", "pydantic", "starlette", "uvicorn", "numpy",
    "pandas", "plotly", "httpx", "rich", "psutil", "alembic", "redis", "psycopg", "fsspec", "pynvml", "msgspec", "isal",
}  # fmt: skip
"""What no command may import before it is called."""


def imported(*arguments: str) -> set[str]:
    """Top-level modules in a new Python after this command line."""
    code = (
        "import json, sys\n"
        "from tightship_platform.cli import root\n"
        f"try:\n    root({list(arguments)!r}, prog_name='tightship')\n"
        "except SystemExit:\n    pass\n"
        "print('MODULES' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(json.loads(out.rpartition("MODULES")[2]))


def test_help_imports_nothing_heavy() -> None:
    assert imported("--help") & HEAVY == set()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_help_of_a_command_imports_nothing_heavy(command: str) -> None:
    assert imported(command, "--help") & HEAVY == set()


@pytest.mark.usefixtures("platform_env")
def test_a_command_that_reads_the_database_imports_neither_server_nor_migrations() -> None:
    modules = imported("token", "list")
    assert "sqlalchemy" in modules
    assert modules & {"fastapi", "starlette", "celery", "dash", "alembic"} == set()


def test_a_launcher_asks_its_server_without_importing_what_draws_tables() -> None:
    code = (
        "import sys\nfrom tightship_platform.cli import main\nsys.argv[1:] = ['run', '--', 'true']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('httpx' in sys.modules, 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n", done.stderr


def test_help_names_every_command_and_what_it_does() -> None:
    shown = CliRunner().invoke(root, ["--help"], prog_name="tightship").output
    entries = entry_points(group=GROUP)
    assert {entry.name for entry in entries} == COMMANDS
    assert {name: (own.value, own.extras) for name, own in cli._own_entries().items()} == {
        entry.name: (entry.value.partition(" ")[0], entry.extras) for entry in entries
    }
    lines = {line.split()[0]: line.split()[1:] for line in shown.partition("Commands:")[2].splitlines() if line.strip()}
    assert set(lines) == COMMANDS
    assert all(lines.values()), "a command has no help"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_and_option_has_a_help(command: str) -> None:
    found = root.get_command(click.Context(root), command)
    assert found is not None
    nested = found.commands.values() if isinstance(found, click.Group) else []
    for each in (found, *nested):
        assert each.help
        for parameter in each.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{command} {parameter.name}"


def test_an_expected_error_is_one_line_and_exit_code_2() -> None:
    result = tightship(os.environ | {"TIGHTSHIP_UPLOAD_MAX_BYTES": "many"}, "runs")
    assert result.returncode == 2
    assert result.stderr == "tightship: TIGHTSHIP_UPLOAD_MAX_BYTES is 'many'; expected a whole number of bytes\n"


def test_an_unknown_command_is_a_short_message(capsys: pytest.CaptureFixture[str]) -> None:
    result = tightship(os.environ, "fly")
    assert result.returncode == 2
    assert "No such command 'fly'" in result.stderr
    assert "Traceback" not in result.stderr
    assert main.__doc__


def test_the_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert CliRunner().invoke(root, ["--version"]).output.strip().endswith(version("tightship"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs", "--limit", "0"], "Invalid value for '--limit': 0 is not in the range 1<=x<=10000"),
        (["nosuch"], "No such command 'nosuch'"),
        (["profile"], "Missing argument 'TARGET'"),
        (["token", "create", "x", "--scope", "all"], "Invalid value for '--scope': 'all' is not one of"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tightship_platform.cli", *arguments], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"tightship: {said}")
    assert "--help`" in line
