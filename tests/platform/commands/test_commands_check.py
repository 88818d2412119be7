"""`tightship check`, and the backup of docs/operations.md under load: what is restored is whole, and loses nothing."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api_calls import RUN, Capture, Served, ok, run_record, trace_file
from processes import tightship
from source_tree import ROOT
from sqlalchemy import make_url, select, text, update
from waiting import wait_for

from tightship_platform.captures import files
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database.engine import open_database
from tightship_platform.database.models import Allocation, Audit, Device, Host, Run, RunAccount, Trace
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S, now_ns

DAY_NS = 86_400 * NS_PER_S


def uploaded(http: Any, run: str = RUN) -> int:
    capture = Capture(http, run=run)
    capture.write()
    trace: int = ok(capture.put(trace_file() + secrets.token_bytes(8)))["trace"]
    return trace


def stored(settings: Settings) -> set[str]:
    return {file for file in open_artifacts(settings).files("traces") if file.endswith(".json.gz")}


def test_a_whole_installation(platform_env: Any, served: Served, http: Any) -> None:
    assert tightship(platform_env.environ, "check").returncode == 0
    uploaded(http)
    done = tightship(platform_env.environ, "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 trace file and 0 accounts checked, 0 faults; 0 files that no row names\n"


def test_what_is_missing_or_does_not_add_up_is_named_and_repaired(platform_env: Any, served: Served, http: Any) -> None:
    gone, cut, kept = (uploaded(http, run) for run in ("a1", "a2", "a3"))
    store = open_artifacts(platform_env.settings)
    with served.database.session() as session:
        urls = {trace.id: trace.url for trace in session.scalars(select(Trace))}
        run = session.scalars(select(Run).where(Run.key == "a3")).one()
        host = session.scalars(select(Host)).one()
        device = session.scalars(select(Device).where(Device.host_id == host.id)).one()
        run.end_ns, run.accounted_ns, run.state = run.start_ns + 100, now_ns(), "finished"
        for allocation in session.scalars(select(Allocation).where(Allocation.run_id == run.id)):
            session.delete(allocation)
        session.flush()
        session.add(Allocation(run_id=run.id, device_id=device.id, start_ns=run.start_ns, end_ns=run.end_ns))
        session.add(RunAccount(run_id=run.id, bucket="input", device_ns=99))
    store.delete(urls[gone])
    store.write(urls[cut], [b"half"], max_bytes=100)
    before = stored(platform_env.settings)
    done = tightship(platform_env.environ, "check")
    assert done.returncode == 1
    assert re.search(rf"^FAULT  not in .*: the files of traces {gone}, {cut}$", done.stdout, re.MULTILINE)
    assert re.search(r"^FAULT  accounts .*: a3$", done.stdout, re.MULTILINE)
    assert "3 faults" in done.stdout
    repaired = tightship(platform_env.environ, "check", "--repair")
    assert (repaired.returncode, repaired.stdout.splitlines()[-1]) == (0, "Repaired: 2 traces, 1 account.")
    assert tightship(platform_env.environ, "check").returncode == 0
    assert stored(platform_env.settings) == before, "no file goes"
    with served.database.session() as session:
        left = session.scalars(select(Trace.id).where(Trace.removed_ns.is_(None))).all()
        assert left == [kept] and session.scalar(select(Run.accounted_ns).where(Run.key == "a3")) is None
        assert session.scalars(select(Audit.action).where(Audit.actor == "cli")).all() == ["installation.repair"]


def test_a_foreign_store_is_a_fault_that_repairing_leaves_alone(platform_env: Any, served: Served, http: Any) -> None:
    trace = uploaded(http)
    (Path(platform_env.settings.artifacts_url) / "traces/tightship-installation").write_text("0" * 32 + "\n")
    shutil.rmtree(next(Path(platform_env.settings.artifacts_url).glob(f"traces/{RUN}")))
    done = tightship(platform_env.environ, "check", "--repair")
    assert done.returncode == 1 and "belongs to installation 000" in done.stdout
    with served.database.session() as session:
        assert session.scalar(select(Trace.removed_ns).where(Trace.id == trace)) is None


def commands(engine: str) -> list[str]:
    """The backup's commands of docs/operations.md."""
    section = (ROOT / "docs/operations.md").read_text().partition("## Backup and restore")[2].partition("\n## ")[0]
    blocks = re.findall(r"```bash\n# (\w+), (backup|restore)\n(.*?)```", section, re.DOTALL)
    return [script for name, _, script in blocks if name == engine]


@pytest.mark.postgres
@pytest.mark.parametrize("engine", ["SQLite", "PostgreSQL"])
def test_a_backup_under_load_is_whole_when_it_is_restored_into_nothing(
    make_platform_env: Any,
    make_database_url: Callable[..., str],
    serve: Callable[..., Served],
    tmp_path: Path,
    engine: str,
) -> None:
    kind = {"SQLite": "sqlite", "PostgreSQL": "postgres"}[engine]
    old = make_platform_env(database=kind)
    backup, restore = commands(engine)
    served = serve(old.settings)
    stop, uploads = threading.Event(), [0]

    def load() -> None:
        with served.http() as http:
            while not stop.is_set():
                uploaded(http, f"run{uploads[0]}")
                uploads[0] += 1

    loading = threading.Thread(target=load)
    loading.start()
    try:
        wait_for(lambda: uploads[0] >= 5, "some traces before the backup")
        saved = tmp_path / "backup"
        saved.mkdir()
        shell(backup, old.settings, saved)
        during = uploads[0]
        wait_for(lambda: uploads[0] > during, "one after it")
    finally:
        stop.set()
        loading.join()
    new_home = tmp_path / "new"
    empty = make_database_url(kind, migrated=False) if kind == "postgres" else f"sqlite:///{new_home / 'tightship.db'}"
    new = Settings(home=new_home, database_url=empty, artifacts_url=str(new_home / "artifacts"))
    shell(restore, new, saved)
    environ = old.environ | {
        "TIGHTSHIP_HOME": str(new_home), "TIGHTSHIP_DATABASE_URL": empty, "TIGHTSHIP_ARTIFACTS_URL": new.artifacts_url
    }  # fmt: skip
    done = tightship(environ, "check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= 5
    before = stored(new)
    with open_database(new) as database:
        removed = files.sweep(database, open_artifacts(new), keep_days=30, now=now_ns() + DAY_NS)
        assert (removed.files, removed.traces) == (0, 0)
        with database.session() as session:
            named = set(session.scalars(select(Trace.url).where(Trace.removed_ns.is_(None))))
            session.execute(update(Run).values(reason=None))  # it takes writes
            assert session.execute(text("SELECT count(*) FROM run")).scalar() >= 5
    assert stored(new) == before >= named
    with serve(new).http() as http:
        assert {run["run"] for run in ok(http.get("/runs"))} >= {f"run{n}" for n in range(5)}
        ok(http.post("/runs", json=run_record("afterwards")))
        uploaded(http, "afterwards")


def shell(script: str, settings: Settings, saved: Path) -> None:
    """Run the documented commands, with the names that they use."""
    url = make_url(settings.database_url)
    environ = {
        "PATH": "/usr/bin:/bin",
        "TIGHTSHIP_HOME": str(Path(str(url.database)).parent if url.get_backend_name() == "sqlite" else settings.home),
        "TIGHTSHIP_ARTIFACTS": settings.artifacts_url,
        "BACKUP": str(saved),
        "DATABASE": url.set(drivername="postgresql").render_as_string(hide_password=False),
    }
    subprocess.run(["bash", "-euc", script], env=environ, check=True, capture_output=True, text=True)
