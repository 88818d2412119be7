"""The main pages, literally: their blocks are run in the order in which a reader meets them, against one server.

docs/first-fleet.md has its own test, and so has the backup of docs/operations.md.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from captured import RECORDED
from guide import Shell, blocks
from processes import answers
from recorder_dumps import entry, write_dumps
from services import free_port
from source_tree import ROOT
from starved_job import STARVED
from waiting import wait_for

from tightship_platform.client import ApiClient
from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

UP, TRAIN = "tightship up\n", "tightship run --workflow mine -- python train.py\n"
"""Blocks that go on while others are run."""
SAYS = {
    "start/train.md": ("starved-input|loader", "## Use instead|Use instead", r"^\S+ +mine\b"),
    "start/budget.md": (r"\bmine\b",),
    "start/cluster.md": ("token.revoke", " 0 faults;"),
    "start/rule.md": ("gc.freeze", "DeviceGaps"),
    "hangs.md": ("has not called all_reduce",),
}
"""Page → what its blocks have to show, besides that all their commands succeed; in the order of reading."""


class Reader:
    """Somebody with a checkout, a trace and a training script, who follows the documents."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.has_server = folder, free_port(), False
        self.runtime = Path(f"/tmp/tst-{uuid.uuid4().hex[:12]}")
        self.shells: dict[str, Shell] = {}
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTSHIP_")}
        self.environ = environ | {
            "HOME": str(folder),
            "TIGHTSHIP_HOME": str(folder / "home"),
            "TIGHTSHIP_SERVER": f"http://127.0.0.1:{self.port}",
            "TIGHTSHIP_RUNTIME_DIR": str(self.runtime),
            "CUDA_VISIBLE_DEVICES": "",
            "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
        }
        self.dumps = folder / "dumps"
        shutil.copy(RECORDED / "starved.json.gz", folder / "trace.json.gz")
        (folder / "train.py").write_text(STARVED)
        self.dumps.mkdir()
        write_dumps(self.dumps, {0: [entry(5)], 1: [entry(5)], 2: [entry(5)], 3: [entry(4, state="completed")]})

    def read(self, page: str) -> str:
        """Do what the page says; what that printed."""
        said = []
        for block in blocks(ROOT / "docs" / page):
            shell = self.shells.setdefault(block.where, Shell(self.folder, self.environ))
            if block.text == UP:
                self._start(shell)
            elif block.text == TRAIN:
                shell.begin(f"{TRAIN.rstrip()} stop")
                wait_for(self._trains, "the run's first steps")
            else:
                said.append(shell.run(block.text.replace("/shared/job-17", str(self.dumps))))
        return "".join(said)

    def _start(self, shell: Shell) -> None:
        if not self.has_server:
            shell.begin(f"tightship up --port {self.port}")
            wait_for(lambda: answers(self.environ["TIGHTSHIP_SERVER"]), "the server")
        self.has_server = True

    def _trains(self) -> bool:
        return any(run["steps"] for run in self._api("/runs"))

    def finish(self) -> None:
        """Let the training end, and its device time be accounted for."""
        (self.folder / "stop").touch()
        wait_for(lambda: self._api("/opportunities"), "an opportunity")

    def _api(self, path: str) -> Any:
        try:
            with ApiClient(load_settings(self.environ)) as api:
                return api.get(path)
        except TightshipError:
            return []

    def leave(self) -> None:
        for shell in self.shells.values():
            shell.kill()
        shutil.rmtree(self.runtime, ignore_errors=True)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(tmp_path_factory.mktemp("reader"))
    yield made
    made.leave()


def test_the_main_pages_lead_where_they_say(reader: Reader) -> None:
    for page, shown in SAYS.items():
        said = reader.read(page)
        for pattern in shown:
            assert re.search(pattern, said, re.MULTILINE), f"{page} does not show {pattern}:\n{said}"
        if page == "start/train.md":
            reader.finish()
