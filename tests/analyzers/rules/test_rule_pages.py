"""The catalogue and its pages: complete, in step with the code, and shown by the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import generate_docs as docs
import pytest
from click.testing import CliRunner
from source_tree import ROOT
from waiting import PATIENCE_S

from tightship_analyzers.commands.rules import rules as rules_command
from tightship_analyzers.rules.catalogue import HEADINGS, RULES, find_rule
from tightship_platform.errors import NotFound


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return docs.pages()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_the_house_form(rule: object) -> None:
    page = rule.page  # type: ignore[attr-defined]
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(HEADINGS)
    for section in re.split(r"^## .+$", page, flags=re.MULTILINE)[1:]:
        assert len(section.strip()) > 20, "a section says something"
    example = page.split("## Example")[1].split("## Use instead")
    assert "```python" in example[0] and "```python" in example[1]
    module = rule.judge.__module__  # type: ignore[attr-defined]
    assert module.rpartition(".")[2].replace("_", "-") == rule.id, "the file is named after the rule"  # type: ignore[attr-defined]


NO_RULES = {"__init__", "catalogue", "pages", "plan_advice"}


def test_rule_files_and_catalogue_agree() -> None:
    folder = docs.DOCS.parent / "analyzers" / "tightship_analyzers" / "rules"
    files = {path.stem.replace("_", "-") for path in folder.rglob("*.py") if path.stem not in NO_RULES}
    assert files == {rule.id for rule in RULES}


def test_generated_pages_are_up_to_date() -> None:
    # In its own process: a command that another test has called by itself keeps the help option of that call.
    command = [sys.executable, "tools/generate_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, ""), f"{done.stdout}{done.stderr}run `make docs`"


def test_the_check_says_what_is_out_of_date(
    pages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "DOCS", tmp_path)

    def run(*arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr("sys.argv", ["docs", *arguments])
        with pytest.raises(SystemExit) as ended:
            docs.main()
        return int(ended.value.code or 0), capsys.readouterr().out.splitlines()

    code, said = run("--check")
    assert (code, len(said)) == (1, len(pages))
    assert list(tmp_path.iterdir()) == []
    assert run()[0] == 0
    assert run("--check") == (0, [])
    (tmp_path / "cli.md").write_text("old", encoding="utf-8")
    (tmp_path / "rules" / "gone.md").write_text("gone", encoding="utf-8")
    assert run("--check") == (1, ["docs/cli.md is out of date", "docs/rules/gone.md is out of date"])
    run()
    assert run("--check") == (0, [])


def test_no_page_of_a_rule_that_is_gone(pages: dict[str, str]) -> None:
    assert {f"rules/{path.name}" for path in (docs.DOCS / "rules").glob("*.md")} == {
        name for name in pages if name.startswith("rules/")
    }


def test_the_command_lists_all() -> None:
    result = CliRunner().invoke(rules_command, [])
    assert result.exit_code == 0
    for rule in RULES:
        assert rule.id in result.output


def test_the_command_shows_one() -> None:
    result = CliRunner().invoke(rules_command, ["loop-indexing"])
    assert result.exit_code == 0
    assert "Known misses" in result.output


def test_json_keys_are_stable() -> None:
    listed = json.loads(CliRunner().invoke(rules_command, ["--json"]).output)
    assert [rule["rule"] for rule in listed] == [rule.id for rule in RULES]
    one = json.loads(CliRunner().invoke(rules_command, ["starved-input", "--json"]).output)
    assert list(one) == ["rule", "title", "scope", "needs", "unit", "fix", "page"]
    assert one == listed[0]


def test_an_unknown_rule_is_one_line() -> None:
    with pytest.raises(NotFound, match=r"No rule named 'starved-imput'; did you mean starved-input\? "):
        find_rule("starved-imput")
