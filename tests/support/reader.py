"""Somebody who follows the documents of the project to the letter, with a server and jobs of their own."""

from __future__ import annotations

import getpass
import gzip
import os
import shutil
import sys
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import op_tables
import rank_jobs
from captured import RECORDED
from guide import Shell, blocks
from hanging_job import write_job
from processes import answers
from recorder_dumps import entry, write_dumps
from services import free_port
from source_tree import ROOT
from starved_job import STARVED
from waiting import wait_for

from tightship_platform.client import ApiClient
from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings

DOCS = ROOT / "docs"
UP = "tightship up\n"
TRAIN = {
    "tightship run --workflow mine -- python train.py\n": "mine",
    "tightship run --workflow vision-base --team vision -- python train.py\n": "vision-base",
}
"""Blocks that go on while others are run, and their workflows."""
ELSEWHERE = tuple(f"{store}, {what}" for store in ("SQLite", "PostgreSQL") for what in ("backup", "restore"))
"""Blocks of docs/operations.md that tests/platform/commands/test_commands_check.py runs."""
JOBS = {
    "llm-7b": "SLURM_JOB_ID=4711 tightship run --workflow llm-7b --team nlp -- bash ranks.sh",
    "mine": "tightship run --workflow mine --team vision -- python train.py stop-second",
}
RAISES = 'import torch; raise ValueError("loss is nan")'
FAILS = f"tightship run --workflow sweep --label lr=3e-4 -- python -c '{RAISES}' || true"


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
            "TIGHTSHIP_AGENT_RUNS": "launched",
            "TIGHTSHIP_HOST_NAME": "gpu17",
            "USER": getpass.getuser(),
            "CUDA_VISIBLE_DEVICES": "",
            "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
        }
        self.dumps = folder / "dumps"
        shutil.copy(RECORDED / "starved.json.gz", folder / "trace.json.gz")
        write_job(folder)
        (folder / "train.py").write_text(STARVED)
        self.dumps.mkdir()
        write_dumps(self.dumps, {0: [entry(5)], 1: [entry(5)], 2: [entry(5)], 3: [entry(4, state="completed")]})

    def read(self, page: str) -> str:
        """Do what the page says; what that printed."""
        said = []
        for block in blocks(DOCS / page):
            if block.where in ELSEWHERE:
                continue
            shell = self.shells.setdefault(block.where, Shell(self.folder, self.environ))
            if block.text == UP:
                self._start(shell)
            elif block.text in TRAIN:
                shell.begin(f"{block.text.rstrip()} stop")
                wait_for(partial(self._trains, TRAIN[block.text]), "the run's first steps")
            else:
                if "offload" in block.text:  # what it runs is to end by itself
                    (self.folder / "stop").touch()
                said.append(shell.run(block.text.replace("/shared/job-17", str(self.dumps))))
        return "".join(said)

    def _start(self, shell: Shell) -> None:
        if not self.has_server:
            shell.begin(f"tightship up --port {self.port}")
            wait_for(lambda: answers(self.environ["TIGHTSHIP_SERVER"]), "the server")
        self.has_server = True

    def work(self) -> None:
        """Have a few jobs of several users: one trains, one has failed, one of four ranks hangs."""
        shell = self.shells["jobs"] = Shell(self.folder, self.environ)
        for name, job in JOBS.items():
            self.shells[name] = Shell(self.folder, self.environ)
            self.shells[name].begin(job)
        for workflow in ("mine", "llm-7b"):
            wait_for(partial(self._trains, workflow), f"steps of {workflow}")
        shell.run(FAILS)
        shell.run("tightship profile llm-7b --iterations 3 --no-stacks --passes 1 --wait")
        (self.folder / "hang").touch()
        wait_for((self.folder / "hang.seen").exists, "the hang")
        wait_for(lambda: "nlp" in self._api("/fleet")["by_team"], "its first account")

    def prepare_files(self) -> None:
        """What the longer pages take for granted: traces of several ranks, of before and after, and a table."""
        for fetched in self.folder.glob("*-rank*.json.gz"):  # a trace that was fetched before is not replaced
            fetched.unlink()
        if (self.folder / "before").exists():
            return
        for name, recording in (("before", "starved"), ("after", "fed")):
            (self.folder / name).mkdir()
            shutil.copy(RECORDED / f"{recording}.json.gz", self.folder / name)
        (self.folder / "trace.json").write_bytes(gzip.decompress((RECORDED / "starved.json.gz").read_bytes()))
        (self.folder / "captures").mkdir()
        first = rank_jobs.traces_of(self.folder / "captures")[0]
        (self.folder / "rank0.json.gz").write_bytes(gzip.compress(Path(first).read_bytes()))
        op_tables.write(self.folder / "job.parquet", op_tables.job_rows())

    def _trains(self, workflow: str) -> bool:
        live = self._api(f"/runs?state=running&workflow={workflow}")
        return any(run["steps"] for run in live)

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
