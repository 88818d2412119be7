"""The documents hold together: links, words, settings and commands are those of the code, and read alike everywhere.

What is checked here is the repository's own view. tests/browser/test_site.py checks the site that `make docs` builds.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import click
import pytest
from guide import main_pages
from source_tree import ROOT, source_files

from tightship_platform.cli import root
from tightship_platform.settings import Settings
from tightship_platform.units import format_bytes
from tightship_platform.vocabulary import Bucket, CaptureState, OpportunityState, PlanState, RunState

LINK = re.compile(r"!?\[[^\[\]]*\]\(([^()\s#]*)(#[^()\s]*)?\)")
FENCED = re.compile(r"^ *(```+|~~~+).*?^ *\1", re.DOTALL | re.MULTILINE)
SETTING = re.compile(r"\bTIGHTSHIP_[A-Z][A-Z0-9_]*[A-Z0-9]\b(?!_|…)")
NOT_READ = {"TIGHTSHIP_ARTIFACTS", "TIGHTSHIP_DATABASE"}
"""A shell variable of the backup's commands, and the beginning of several settings' names."""
FROM_US = {
    *("TIGHTSHIP_RUN", "TIGHTSHIP_RUN_DIR", "TIGHTSHIP_STEPS", "TIGHTSHIP_DEBUG"),
    *(f"TIGHTSHIP_OFFLOAD_{name}" for name in ("PLAN", "MEASURE", "OPTIONAL", "STEPS", "SHORT", "DEADLINE")),
}
"""What the launcher sets for what it starts, and no reader ever sets."""
HISTORY = ("CHANGELOG.md", "docs/decisions/")
"""They may name what is gone."""


@cache
def documents() -> dict[str, str]:
    """Path → text of every document in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()}


def anchors(text: str) -> set[str]:
    """Those of its headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCED.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        made.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return made


def dead_links(name: str, text: str) -> Iterator[str]:
    for match in LINK.finditer(FENCED.sub("", text)):
        target, anchor = match.groups()
        if "://" in target or (not target and not anchor):
            continue
        path = (ROOT / name).parent / target
        there = path.read_text(encoding="utf-8") if target and anchor and path.is_file() else text
        if not path.exists() or (anchor and anchor[1:] not in anchors(there)):
            yield match[0]


def test_every_link_leads_somewhere() -> None:
    found = {name: dead for name, text in documents().items() if (dead := list(dead_links(name, text)))}
    assert len(documents()) > 60
    assert found == {}


def test_a_dead_link_is_found() -> None:
    text = "[a](README.md) [b](gone.md) [c](README.md#no-such) [d](#here)\n## Here\n```\n[e](gone.md)\n```\n"
    assert list(dead_links("README.md", text)) == ["[b](gone.md)", "[c](README.md#no-such)"]


def read_otherwise(text: str) -> Iterator[str]:
    """Lines that GitHub and Python-Markdown, which makes the site, read in two ways: a list right behind a paragraph,
    and what belongs to an item of a list and is indented by less than four."""
    before = ""
    for line in FENCED.sub("", text).splitlines():
        item, after = (re.match(r"(?:[-*+]|\d+\.) ", one) for one in (line, before))
        if (item and before.strip() and not after and not before.startswith((" ", "#"))) or (
            not before.strip() and re.match(r" {1,3}\S", line)
        ):
            yield line
        before = line


def test_documents_read_alike_here_and_in_the_site() -> None:
    found = {name: lines for name, text in documents().items() if (lines := list(read_otherwise(text)))}
    assert {name: lines for name, lines in found.items() if name.startswith("docs/") or "/" not in name} == {}
    assert list(read_otherwise("A:\n- b\n\n- c\n  d\n\n  e\n")) == ["- b", "  e"]


def test_every_picture_is_shown() -> None:
    shown = {
        Path(target).name for text in documents().values() for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    }
    assert {path.name for path in (ROOT / "docs" / "images").rglob("*.png")} - shown == set()


def test_the_tour_has_every_page() -> None:
    tour = documents()["docs/tour.md"]
    pages = (ROOT / "dashboard" / "tightship_dashboard" / "pages").glob("*.py")
    paths = [
        found for page in pages for found in re.findall(r'^PATH = (?:re.compile\(r)?"([^"(]+)', page.read_text(), re.M)
    ]
    assert len(paths) >= 8
    assert [path for path in paths if f"`{path}`" not in tour and f"`{path}<" not in tour] == []


# ---- settings --------------------------------------------------------------------------------------------------------


@cache
def settings_in_documents() -> dict[str, str]:
    """Name → a document that names it."""
    return {
        name: document
        for document, text in documents().items()
        if not document.startswith(HISTORY)
        for name in SETTING.findall(text)
    }


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(TIGHTSHIP_\w+)` \| ([^|]+?) \|", documents()["docs/operations.md"], re.MULTILINE))
    known = {f"TIGHTSHIP_{field.name.upper()}": field.default for field in fields(Settings)}
    assert rows.keys() == known.keys()
    for name, default in known.items():
        if isinstance(default, int):
            assert rows[name] in (str(default), format_bytes(default).replace(".0", "")), name
        elif isinstance(default, str) and default:
            assert rows[name] == f"`{default}`", name


def test_every_setting_that_documents_name_is_read_somewhere() -> None:
    command = ["git", "grep", "-hoE", r"TIGHTSHIP_[A-Z0-9_]+", "--", ":!*.md"]
    read = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    known = {f"TIGHTSHIP_{field.name.upper()}" for field in fields(Settings)}
    assert {name: at for name, at in settings_in_documents().items() if name not in known | read | NOT_READ} == {}


def test_the_code_reads_no_setting_that_nobody_documents() -> None:
    found = {name for path in source_files().values() for name in SETTING.findall(path.read_text(encoding="utf-8"))}
    assert len(found) > 20
    assert found - settings_in_documents().keys() == FROM_US


# ---- commands --------------------------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[str]:
    """Command lines in blocks and within sentences that begin with our program."""
    for block in re.findall(r"^```(?:bash|sh|)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?(?:\w+=\S+ )*(tightship .*)", line)
            if found:
                yield found[1]
    for code in re.findall(r"`(tightship [^`]*)`", FENCED.sub("", text)):
        yield " ".join(code.split())


NOT_RUN = {
    "README.md": {
        "make demo     # trains four": "minutes, and its own tests",
        "make install && . .venv": "installs",
        "tightship run --workflow llm-7b -- torchrun": "eight GPUs",
        "tightship apply 1": "minutes of steps; tests/platform/commands/test_act_and_verify.py",
        "export TIGHTSHIP_TOKEN=$(openssl": "containers",
    },
    "docs/start/train.md": {"python3 -m venv": "installs", "export TIGHTSHIP_SERVER=https": "somebody's server"},
    "docs/start/cluster.md": {"python3 -m venv": "installs"},
    "docs/start/rule.md": {"make docs": "all tests"},
    "docs/first-fleet.md": {"python3 -m venv": "installs"},
    "docs/operations.md": {
        "tightship token enrol gpu17": "a second host; docs/first-fleet.md, which is run, has it",
        "docker buildx imagetools": "containers",
    },
    "docs/import.md": {"sacct -aP": "a Slurm's accounting; tests/collectors/importers reads such files"},
    "docs/standards.md": {"tightship token create prometheus": "a second Prometheus; its own tests"},
    "docs/analyze.md": {"tightship analyze s3://": "a bucket"},
    "docs/offload.md": {
        "export OMP_NUM_THREADS=1 ": "minutes; tests/offload/job/test_from_capture_to_window.py does it small",
        "tightship offload measure -o profile.yaml -- python examples": "the same",
        "tightship run -- python train.py 8": "a control group; tests/offload/job/test_killed_for_memory.py",
    },
    "docs/verification.md": {
        "tightship apply 3": "minutes of steps; tests/contracts/test_actions_contract.py",
        "tightship run --apply 3": "an opportunity of a GPU; tests/collectors/launch/test_launch_change.py",
    },
}
"""Main page → how each block of the language `sh` begins, which no test runs, and why."""


def test_blocks_of_commands_are_run_or_listed() -> None:
    """`bash` is run (tests/platform/test_guides.py), `sh` is listed above; what else is fenced holds no commands."""
    found: dict[str, list[str]] = {}
    for page in main_pages():
        name = posixpath.normpath(f"docs/{page}")
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```", documents()[name], re.DOTALL | re.MULTILINE):
            if language == "sh":
                found.setdefault(name, []).append(text)
            elif language != "bash":
                assert re.findall(r"^(?:tightship|make|docker|pip|export) .*", text, re.MULTILINE) == [], name
    assert {name: len(texts) for name, texts in found.items()} == {name: len(one) for name, one in NOT_RUN.items()}
    for name, texts in found.items():
        for text, begins in zip(texts, NOT_RUN[name], strict=True):
            assert text.startswith(begins), name


def faults(line: str) -> Iterator[str]:
    """What of a command line there is not: a command, or an option of it."""
    try:
        words = shlex.split(line.partition(" #")[0].replace("…", ""), posix=True)[1:]
    except ValueError:
        return
    command: click.Command = root
    for number, word in enumerate(words):
        if word in ("--", "|", ">", "<", "&", "&&", "||", ";"):
            return
        if isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            under = command.get_command(click.Context(command), word)
            if under is None and not (number and command.invoke_without_command):
                yield word
                return
            command = under or command
        elif word.startswith("--"):
            known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
            if word.partition("=")[0] not in known | {"--help", "--version"}:
                yield word


def test_every_command_that_documents_name_exists() -> None:
    lines = {
        line: name for name, text in documents().items() if not name.startswith(HISTORY) for line in commands(text)
    }
    assert len(lines) > 80
    assert {line: (name, wrong) for line, name in lines.items() if (wrong := list(faults(line)))} == {}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("tightship profile mine --duration 2s --wait", []),
        ("tightship run --workflow mine -- python train.py --epochs 3", []),
        ("tightship token create alice --scope read", []),
        ("tightship token make alice", ["make"]),
        ("tightship profil mine", ["profil"]),
        ("tightship runs --colour", ["--colour"]),
        ("tightship rules starved-input", []),
        ("tightship up   # --nothing", []),
    ],
)
def test_a_command_that_is_gone_is_found(line: str, wrong: list[str]) -> None:
    assert list(faults(line)) == wrong


# ---- words and symptoms ----------------------------------------------------------------------------------------------


def test_the_glossary_has_every_bucket_and_state() -> None:
    words = set(re.findall(r"`(\w+)`", documents()["docs/glossary.md"]))
    for kind in (Bucket, RunState, CaptureState, PlanState, OpportunityState):
        assert {word.value for word in kind} <= words, kind.__name__


def said_in_code() -> str:
    """All texts of the program, one a line; `…` stands for values in them."""
    lines = []
    for path in source_files().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                lines.append("".join(map(str, parts)))
    return "\n".join(lines)


def test_symptoms_are_what_the_program_says() -> None:
    """A symptom in quotes is a text of the program; what stands for values may be longer there."""
    said = said_in_code()
    symptoms = [
        code
        for first in re.findall(r"^\| (.+?) \| ", documents()["docs/troubleshooting.md"], re.MULTILINE)
        for code in re.findall(r"`([^`]{12,})`", first)
    ]
    assert len(symptoms) > 20
    pieces = [piece.strip(" ;,.").removeprefix("failed: ") for text in symptoms for piece in re.split("…|'…'", text)]
    assert [piece for piece in pieces if len(piece) > 5 and piece not in said] == []


def test_figures_that_the_readme_repeats_are_those_that_were_measured() -> None:
    readme, proof = " ".join(documents()["README.md"].split()), documents()["docs/proof.md"]
    rules = re.search(r"^(\d+) rules, judged", documents()["docs/rules/README.md"], re.MULTILINE)
    pairs = re.search(r"^- (\d+) pairs:", proof, re.MULTILINE)
    error = re.search(r"^- Median error of the value ([\d.]+ %)", proof, re.MULTILINE)
    assert rules and f"the {rules[1]} rules" in readme
    assert pairs and f"to {pairs[1]} real jobs" in readme
    assert error and f"the median error is {error[1]} of the step" in readme
    if "intervals overlap in all of them" in readme:
        assert "intervals overlap in 100.0 % of the pairs" in proof
