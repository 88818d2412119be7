"""The main pages, literally: their blocks are run in the order in which a reader meets them, against one server.

docs/tasks.md is read after them, with more jobs beside. docs/first-fleet.md has its own test, and so has the backup of
docs/operations.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
from guide import blocks, main_pages, python_blocks, tasks
from page_text import page_text
from processes import own
from reader import DOCS, Reader
from waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SAYS = {
    "start/train.md": ("starved-input|loader", "## Use instead|Use instead", r"^\S+ +mine\b"),
    "start/budget.md": (r"\bmine\b",),
    "start/cluster.md": ("token.revoke", " 0 faults;"),
    "start/rule.md": ("gc.freeze", "DeviceGaps"),
    "hangs.md": ("has not called all_reduce",),
    "operations.md": ("",),
}
"""Page → what its blocks have to show, besides that all their commands succeed; in the order of reading."""

DEAR = {
    ("../README.md", "offload.md"): (
        "of vision-base, run ",
        "rank3",
        "most headroom",
        "tightship offload run plan.yaml",
    ),
    ("analyze.md",): ("^Rank 0, the least productive of 3", "starved-input", "train\\.py:\\d+"),
    ("stragglers.md",): ("",),
}
"""Pages, in this order → what their blocks have to show."""
WITH_OWN_TEST = {"first-fleet.md", "tasks.md"}
WITH_PYTHON = ("analyze.md", "stragglers.md")
"""Their blocks of Python are whole programs."""
ANSWERS = {
    "Which of my runs since yesterday with the label lr=3e-4 failed, and why?": (
        r"^\w+ +sweep .*failed \(1\).*ValueError: loss is nan",
        r"\bsweep\b.*ValueError: loss is nan",
    ),
    "Why does this run make no steps?": (
        r"Ranks 0, 1 and 2 wait in all_reduce, which rank 3 has not called: at .*/rank\.py:\d+ endless",
        r"No step for .*tightship why",
    ),
    "Give me rank 3's trace, and open it in Perfetto": (
        r"-rank3\.json\.gz",
        r"Download the trace of rank 3 .*Open in Perfetto",
    ),
    "Take a trace of ten steps of the job that runs now": (
        r"^Capture \w+ of mine, .*: 1 trace",
        r"10 iterations.*analyzed",
    ),
    "What does it waste, and where in my code?": (
        r"starved-input .*train\.py:\d+",
        r"^(?=.*DataLoader)(?=.*train\.py:\d+)",
    ),
    "Compare this run with the one before": (r"^A step (takes|went from) .*\n", r"mine.* is live"),
    "How does my run do, on one screen?": (r"^mine, run \w+: running for ", r"How is mine doing"),
    "Where does its step go, as one page that I can send around?": (r"", r"Where the step of rank 0 went"),
    "Have a trace taken of every run of my workflow, once an hour": (
        r"^mine: every live run is captured every 1",
        r"workflow\.schedule",
    ),
    "What runs now?": (r"^\w+ +llm-7b +nlp +running", r"\bllm-7b\b.*\bmine\b|\bmine\b.*\bllm-7b\b"),
    "Whose is job 4711 of the scheduler, and what is it doing?": (r"^\w+ +llm-7b +nlp ", r"\bllm-7b\b"),
    "What ran on host gpu17 since yesterday?": (r"^\w+ +sweep ", r"\bsweep\b"),
    "Which hosts report, and which are silent?": (r"^gpu17 +alive ", r"\bgpu17\b"),
    "Who changed what?": (r"workflow\.schedule +mine", r"capture\.request.*params: .*iterations=10 .*stacks=true"),
    "Who has a token, and when was it last used?": (r"^alice ", r"token\.create.*alice|alice.*token\.create"),
    "Is everything there that should be, after a restore say?": (r" 0 faults;", r"Losses.*Accounts"),
    "Which team wastes most?": (r"^nlp +\d", r"By team.*\bnlp\b"),
    "What should we do first?": (r"^1 +\w+", r"What to do first.*starved-input|DataLoader"),
    "Which runs wait for their data?": (r"^\w+ +mine ", r"\bmine\b"),
    "All runs of the last seven days, for a spreadsheet": (r"", r"Export CSV"),
}
"""Task of docs/tasks.md → what its command prints, and what its page says."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(tmp_path_factory.mktemp("reader"))
    yield made
    made.leave()


@pytest.fixture(scope="module")
def at_work(reader: Reader, printed: dict[str, str]) -> Reader:
    """The same, with jobs: one trains, one has failed, one of four ranks hangs."""
    reader.work()
    return reader


@pytest.fixture(scope="module")
def printed(reader: Reader) -> dict[str, str]:
    """Page → what its blocks print. Whoever asks for it has read the main pages."""
    found = {}
    for page in SAYS:
        found[page] = reader.read(page)
        if page == "start/train.md":
            reader.finish()
    return found


def test_the_main_pages_lead_where_they_say(printed: dict[str, str]) -> None:
    for page, shown in SAYS.items():
        for pattern in shown:
            assert re.search(pattern, printed[page], re.MULTILINE), f"{page} does not show {pattern}:\n{printed[page]}"


def test_everyday_tasks_are_one_command_and_one_page_each(at_work: Reader) -> None:
    todo = tasks(DOCS / "tasks.md")
    assert len(todo) == 20 and {task.question for task in todo} == ANSWERS.keys()
    shell, environ = at_work.shells["jobs"], at_work.environ
    with httpx.Client(base_url=environ["TIGHTSHIP_SERVER"], auth=own(environ), timeout=60) as http:
        late: list[tuple[str, str]] = []
        for task in todo:
            printed, shown = ANSWERS[task.question]
            answer = shell.run(task.command)
            assert re.search(printed, answer, re.MULTILINE), f"{task.command} does not show {printed}:\n{answer}"
            if not _says(http, task.page, shown):
                late.append((task.page, shown))
        for page, shown in late:  # a page speaks of a hang after two minutes, and of device time once it is counted
            wait_for(partial(_says, http, page, shown), f"{page}: {shown}", timeout_s=2 * PATIENCE_S)
    assert (at_work.folder / "runs.csv").read_text().startswith("run,workflow,team,")
    assert "starved-input" in (at_work.folder / "report.html").read_text()


def _says(http: httpx.Client, page: str, shown: str) -> bool:
    return re.search(shown, page_text(http, page), re.DOTALL) is not None


@pytest.mark.sliced(1)
@pytest.mark.parametrize("pages", DEAR, ids=" ".join)
def test_pages_whose_commands_take_long_lead_where_they_say(at_work: Reader, pages: tuple[str, ...]) -> None:
    folder = at_work.folder
    at_work.prepare_files()
    printed = ""
    for page in pages:
        (folder / "stop").unlink(missing_ok=True)
        printed += at_work.read(page)
        for code in python_blocks(DOCS / page) if page in WITH_PYTHON else ():
            at_work.shells["jobs"].run(f"python - <<'END'\n{code}END")
    for pattern in DEAR[pages]:
        assert re.search(pattern, printed, re.MULTILINE), f"{pages} do not show {pattern}:\n{printed}"


def test_every_page_of_the_navigation_with_commands_is_read_here() -> None:
    with_commands = {page for page in main_pages() if list(blocks(DOCS / page))}
    assert with_commands == {*SAYS, *WITH_OWN_TEST, *(page for pages in DEAR for page in pages)}
