"""docs/first-fleet.md, literally: its blocks are run in order, a separate shell for each machine and person."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import ssl
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from guide import Shell, blocks
from oidc_provider import CLIENT, SECRET, oidc_provider
from services import free_port
from source_tree import ROOT
from sso_rig import Browser

SERVER, GPU_HOST, USER = "on the server", "on the GPU host", "as a user of the GPU host"
TRAIN = "import torch\nmodel = torch.nn.Linear(4, 4)\nprint(float(model(torch.ones(4)).sum()))\n"
CARRIED = ("ca.pem", "word", "token")
"""What the guide has people copy from the server to a GPU host."""


@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_the_guide_leads_from_nothing_to_a_fleet(
    make_database_url: Callable[..., str], redis_url: str, tmp_path: Path
) -> None:
    port, runtime = free_port(), Path(f"/tmp/tst-{uuid.uuid4().hex[:12]}")
    server = f"https://localhost:{port}"
    database = make_database_url("postgres").replace("+psycopg", "")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTSHIP_")}
    environ |= {"HOME": str(tmp_path), "TIGHTSHIP_RUNTIME_DIR": str(runtime), "CUDA_VISIBLE_DEVICES": ""}
    environ["TIGHTSHIP_AGENT_RUNS"] = "launched"
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    folders = {SERVER: tmp_path / "server", GPU_HOST: tmp_path / "gpu", USER: tmp_path / "user"}
    client = f"TIGHTSHIP_SERVER={server} TIGHTSHIP_CA_FILE={folders[GPU_HOST]}/ca.pem TIGHTSHIP_HOST_NAME=gpu17"
    said: list[str] = []
    with oidc_provider() as provider:
        provider.person["groups"] = ["it"]
        mine = {
            SERVER: f"umask 077; NAME=localhost PORT={port} DATABASE={database} REDIS={redis_url} "
            f"ISSUER={provider.issuer} CLIENT={CLIENT!r} CLIENT_SECRET={SECRET!r} GROUPS_HERE='it=admin' "
            f"GPU_HOST=gpu17 PERSON={getpass.getuser()} TEAM=vision",
            GPU_HOST: f"umask 077; export {client} TIGHTSHIP_HOME={folders[GPU_HOST]}/home",
            USER: f"export {client} TIGHTSHIP_TOKEN=$(cat token)",
        }
        shells = {where: Shell(folder, environ) for where, folder in folders.items()}
        (folders[USER] / "train.py").write_text(TRAIN)
        try:
            for block in blocks(ROOT / "docs/first-fleet.md"):
                said.append(shells[block.where].run(mine[block.where] if block.is_own else block.text))
                for name in CARRIED:
                    if (folders[SERVER] / name).exists():
                        shutil.copy(folders[SERVER] / name, folders[GPU_HOST] / name)
                        shutil.copy(folders[SERVER] / name, folders[USER] / name)
                if "db status" in block.text:
                    person = Browser(server, ssl.create_default_context(cafile=folders[SERVER] / "ca.pem"))
                    with person.http as http:
                        person.log_in("/")
                        assert http.get("/api/v1/runs").json() == []
            everything = "".join(said)
            assert re.search(r"^\S+ +first .*finished", everything, re.MULTILINE), everything
            assert everything.rstrip().endswith("files that no row names") and " 0 faults;" in everything
            audit = shells[SERVER].run("tightship audit")
            assert "session.begin" in audit and "host.enrol" in audit
            assert (folders[SERVER] / "server.env").stat().st_mode & 0o777 == 0o600
        finally:
            for shell in shells.values():
                shell.kill()
            shutil.rmtree(runtime, ignore_errors=True)
