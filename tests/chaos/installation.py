"""A whole installation on one machine: a fleet's, or the one of somebody alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from agent_rig import Rig
from parts import Part, tightship, wait_until
from services import find_postgres, free_port, postgres_answers, redis_answers, unprivileged

TOKEN = "a-token-for-all-of-the-chaos"
LAUNCHED_EXIT_CODE = 7
_LOOK_S = 0.2


class Installation:
    """All parts, and who starts those again that ended by themselves.

    :param alone: SQLite, a folder as broker and no other services, as `tightship up` has it.
    """

    def __init__(self, folder: Path, *, alone: bool) -> None:
        self.folder, self.alone = folder, alone
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        self.port = free_port()
        self.database_port, self.broker_port = free_port(), free_port()
        self.runtime = Path(tempfile.mkdtemp(prefix="r-"))
        self.variables = {
            "TIGHTSHIP_HOME": str(self.home),
            "TIGHTSHIP_RUNTIME_DIR": str(self.runtime),
            "TIGHTSHIP_AGENT_RUNS": "launched",
            "TIGHTSHIP_TOKEN": TOKEN,
            "TIGHTSHIP_SERVER": f"http://127.0.0.1:{self.port}",
        }
        if not alone:
            self.variables |= {
                "TIGHTSHIP_DATABASE_URL": f"postgresql+psycopg://tightship@127.0.0.1:{self.database_port}/postgres",
                "TIGHTSHIP_BROKER_URL": f"redis://127.0.0.1:{self.broker_port}/0",
            }
        self.rig = Rig(variables=self.variables, port=self.port)
        self.parts = {part.name: part for part in self._make()}
        self.down: set[str] = set()
        """Parts that nobody starts now."""

    def _make(self) -> Iterator[Part]:
        base = {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")}
        if not self.alone:
            yield self._postgres(base)
            redis = shutil.which("redis-server") or shutil.which("valkey-server")
            assert redis is not None, "no redis-server here"
            port = str(self.broker_port)
            command = [redis, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
            url = f"redis://127.0.0.1:{port}"
            yield Part(
                name="redis", command=command, environ=base, folder=self.folder, answers=lambda: redis_answers(url)
            )
        temp = self.folder / "temp"
        temp.mkdir()
        ours = {
            "server": tightship("server", "--port", str(self.port)),
            "worker": tightship("worker", "--beat", "--concurrency", "1"),
            "agent": tightship("agent", "--interval", "500ms"),
            "launcher": tightship("run", "--", "sh", "-c", f"exit {LAUNCHED_EXIT_CODE}"),
        }
        environ = base | self.variables | {"TMPDIR": str(temp)}
        for name, command in ours.items():
            yield Part(name=name, command=command, environ=environ, folder=self.folder)

    def _postgres(self, base: dict[str, str]) -> Part:
        account = unprivileged() if os.getuid() == 0 else {}
        data = self.folder / "postgres"
        shutil.copytree(template(), data)
        if account:
            self.folder.chmod(0o711)
            for path in (data, *data.rglob("*")):
                os.chown(path, account["user"], account["group"])
        data.chmod(0o700)
        port = str(self.database_port)
        command = [str(find_postgres() / "postgres"), "-D", str(data), "-p", port, "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=32MB"]
        url = f"postgresql+psycopg://tightship@127.0.0.1:{port}/postgres"
        return Part(
            name="postgres",
            command=command,
            environ=base,
            folder=self.folder,
            account=account,
            answers=lambda: postgres_answers(url),
        )

    @property
    def lasting(self) -> list[Part]:
        """Parts that run all the time."""
        return [part for part in self.parts.values() if part.name != "launcher"]

    def start(self) -> None:
        """All parts, in the order in which each finds what it needs."""
        for name in ("postgres", "redis"):
            if name in self.parts:
                self.parts[name].start()
                assert wait_until(self.parts[name].answers, 60), f"{name} does not start: {self.parts[name].log}"
        self.parts["server"].start()
        assert wait_until(lambda: self.rig.get("/hosts") is not None, 60), "the server does not start"
        self.parts["worker"].start()
        self.parts["agent"].start()

    def heal(self) -> None:
        """Everything runs again, with true clocks and disks that work."""
        self.down.clear()
        for part in self.parts.values():
            part.send(signal.SIGCONT)
            part.mend_disk()
            part.set_clock(0)
        self.keep()

    def keep(self) -> None:
        """Start again what should run, as `tightship up` or a container's restart policy does."""
        for part in self.lasting:
            if part.name not in self.down and (part.process is None or part.process.poll() is not None):
                if part.name == "postgres":  # of a process that was killed; its number may be another's by now
                    (self.folder / "postgres" / "postmaster.pid").unlink(missing_ok=True)
                part.start()

    def sleep_until(self, moment_s: float) -> None:
        """Wait until that monotonic second, and keep all running meanwhile."""
        while (left_s := moment_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))
            self.keep()

    def wait_until(self, what: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it became true in time; all is kept running meanwhile."""

        def look() -> bool:
            self.keep()
            return what()

        return wait_until(look, timeout_s)

    def end(self) -> None:
        """End all parts."""
        for name in ("agent", "worker", "server", "launcher"):
            self.parts[name].ask_to_end()
        for part in reversed(self.parts.values()):
            part.end()
        self.rig.close()
        shutil.rmtree(self.runtime, ignore_errors=True)


@cache
def template() -> Path:
    """An empty PostgreSQL cluster, made once."""
    folder = Path(tempfile.mkdtemp(prefix="template-"))
    account = unprivileged() if os.getuid() == 0 else {}
    if account:
        os.chown(folder, account["user"], account["group"])
    command = [find_postgres() / "initdb", "-D", folder / "data", "-U", "tightship", "-A", "trust", "-E", "UTF8"]
    subprocess.run([*command, "--locale=C", "--no-sync"], check=True, capture_output=True, cwd=folder, **account)
    return folder / "data"
