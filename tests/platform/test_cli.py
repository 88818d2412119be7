"""The root of the command line: it lists everything and imports next to nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from processes import tightship

from tightship_platform.cli import COMMANDS, SUCCESSORS, main, root

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


def test_a_launcher_asks_its_server_and_imports_little() -> None:
    code = (
        "import sys\nfrom tightship_platform.cli import main\nsys.argv[1:] = ['run', '--', 'true']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('http.client' in sys.modules, *sorted({'httpx', 'rich', 'importlib.metadata'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", done.stderr


def test_help_names_every_command_and_what_it_does() -> None:
    shown = CliRunner().invoke(root, ["--help"], prog_name="tightship", terminal_width=100).output
    lines = [line.split(maxsplit=1) for line in shown.partition("Commands:\n")[2].splitlines()]
    assert lines == [[name, f"{entry.help}."] for name, entry in sorted(COMMANDS.items())]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_line_of_a_command_is_how_its_help_begins(name: str) -> None:
    command = COMMANDS[name].load()
    assert isinstance(command, click.Command) and command.help is not None
    assert command.name == name
    text = " ".join(command.help.split())
    assert text.startswith(COMMANDS[name].help)
    assert text.removeprefix(COMMANDS[name].help).startswith((".", ",", ";", ":", " ("))


def test_a_shell_completes_commands_without_importing_them() -> None:
    code = (
        "import sys\nfrom tightship_platform.cli import main\ntry:\n    main()\nexcept SystemExit:\n"
        "    print(len([name for name in sys.modules if '.commands.' in name]))"
    )
    environ = os.environ | {"_TIGHTSHIP_COMPLETE": "bash_complete"}

    def completed(line: str) -> list[str]:
        words = environ | {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        done = subprocess.run([sys.executable, "-c", code], env=words, capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout.splitlines()

    assert completed("tightship ru") == ["plain,rules", "plain,run", "plain,runs", "0"]
    assert completed("tightship fleet --j") == ["", "0"], "it is gone"
    assert completed("tightship fleets --j")[0] == "plain,--json"


@pytest.mark.parametrize("name", sorted(SUCCESSORS))
def test_a_command_that_is_gone_names_its_successor(name: str) -> None:
    assert name not in COMMANDS and SUCCESSORS[name] in COMMANDS
    error = CliRunner().invoke(root, [name, "--json"]).exception
    assert str(error) == f"`tightship {name}` is now `tightship {SUCCESSORS[name]}`"


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
