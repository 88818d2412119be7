"""`tightship trace list` and `get`, and `analyze` and `diff` of runs: files come whole, or nothing comes."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_calls import Capture, Served, ok, run_record, serving, trace_file
from captured import recorded
from click.testing import CliRunner, Result
from sqlalchemy import select

from tightship_platform.cli import root
from tightship_platform.database.models import Audit, Trace
from tightship_platform.errors import Conflict, Invalid, NotFound, TightshipError
from tightship_platform.results.codec import decode
from tightship_platform.results.trace_file import TraceFile
from tightship_platform.units import NS_PER_S, now_ns

ADMIN = "admin-token-of-tests"
STARVED, LOOP, TWICE, BARE = (f"{word}{'0' * 12}" for word in ("aa01", "aa02", "bb03", "cc04"))


@dataclass
class Filled:
    served: Served
    variables: dict[str, str]
    captures: dict[str, Capture]
    data: dict[str, list[bytes]]
    """Run → the files of its ranks."""

    def path(self, trace: int) -> Path:
        """Where the server keeps a file."""
        with self.served.database.session() as session:
            return Path(self.served.settings.artifacts_url) / session.get_one(Trace, trace).url

    def traces(self, run: str) -> list[dict[str, Any]]:
        return self.captures[run].now()["ranks"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def filled(make_platform_env: Callable[..., Any]) -> Iterator[Filled]:
    """A run of two ranks, one of one rank, one that was recorded twice, and the newest, which has no trace."""
    env = make_platform_env()
    with serving(replace(env.settings, token=ADMIN)) as served, served.http(ADMIN) as client:
        data = {
            STARVED: [recorded("starved"), trace_file(50)],
            LOOP: [recorded("loop")],
            TWICE: [recorded("starved"), recorded("fed")],
        }
        captures = {}
        for run, files in data.items():
            ranks = 1 if run == TWICE else len(files)
            calls = captures[run] = Capture(client, run=run, pids={rank: 100 + rank for rank in range(ranks)})
            calls.lease()
            calls.report("armed", expected=[{"rank": rank, "pid": pid} for rank, pid in calls.pids.items()])
            calls.report("written", passes=2 if run == TWICE else 1)
            for number, file in enumerate(files):
                ok(calls.put(file, **{"pass": number + 1}) if run == TWICE else calls.put(file, number))
        ok(client.post("/runs", json=run_record(BARE, start_ns=now_ns() - NS_PER_S)))
        variables = env.variables | {"TIGHTSHIP_SERVER": served.url, "TIGHTSHIP_TOKEN": ADMIN}
        yield Filled(served, variables, captures, data)


@pytest.fixture
def call(filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command against the server, in an empty folder."""
    for name, value in filled.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(root, arguments)


def there(folder: Path) -> list[str]:
    """Everything in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# ---- list ------------------------------------------------------------------------------------------------------------


def test_traces_are_listed_those_of_the_newest_capture_first(call: Callable[..., Result], filled: Filled) -> None:
    files = decode(list[TraceFile], json.loads(call("trace", "list", "--json").stdout))
    assert [(one.run, one.rank) for one in files] == [(TWICE, 0), (LOOP, 0), (STARVED, 0), (STARVED, 1)]
    assert [one.bytes for one in files] == [len(filled.data[one.run][one.rank]) for one in files]
    shown = call("trace", "list").stdout
    assert len(shown.strip().splitlines()) == 6
    assert "stored, two recordings" in shown
    assert [one["run"] for one in json.loads(call("trace", "list", "--json", "--limit", "2").stdout)] == [TWICE, LOOP]
    of_run = json.loads(call("trace", "list", "--run", "aa01", "--json").stdout)
    of_capture = json.loads(call("trace", "list", "--capture", filled.captures[STARVED].key[:9], "--json").stdout)
    assert [one["rank"] for one in of_run] == [0, 1]
    assert of_run == of_capture
    assert "tightship profile WORKFLOW --wait" in call("trace", "list", "--run", "@").stdout
    assert isinstance(call("trace", "list", "--run", "@", "--capture", "@").exception, Invalid)
    assert "ambiguous" in str(call("trace", "list", "--run", "aa").exception)


# ---- get -------------------------------------------------------------------------------------------------------------


def test_all_ranks_of_a_run_come_into_a_folder(call: Callable[..., Result], filled: Filled, tmp_path: Path) -> None:
    done = call("trace", "get", "aa01", "-o", "traces/")
    assert (done.exit_code, done.exception) == (0, None)
    key = filled.captures[STARVED].key
    names = [f"{key}-rank{rank}.json.gz" for rank in (0, 1)]
    assert there(tmp_path) == ["traces", *(f"traces/{name}" for name in names)]
    assert [(tmp_path / "traces" / name).read_bytes() for name in names] == filled.data[STARVED]
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == [f"traces/{name}" for name in names]
    with filled.served.database.session() as session:
        targets = set(session.scalars(select(Audit.target).where(Audit.action == "trace.download")))
    assert {str(one["trace"]) for one in filled.traces(STARVED)} <= targets


@pytest.mark.parametrize("name", ["aa01", "{capture}", "{trace}"])
def test_one_rank_comes_into_the_file_that_is_named(
    call: Callable[..., Result], filled: Filled, tmp_path: Path, name: str
) -> None:
    trace = filled.traces(STARVED)[1]["trace"]
    which = name.format(capture=filled.captures[STARVED].key[:9], trace=trace)
    rank = [] if which == str(trace) else ["--rank", "1"]
    assert call("trace", "get", which, *rank, "-o", "one.json.gz").exit_code == 0
    assert there(tmp_path) == ["one.json.gz"]
    assert (tmp_path / "one.json.gz").read_bytes() == filled.data[STARVED][1]


def test_without_a_place_it_comes_into_the_current_folder(
    call: Callable[..., Result], filled: Filled, tmp_path: Path
) -> None:
    assert call("trace", "get", "aa02").exit_code == 0
    assert there(tmp_path) == [f"{filled.captures[LOOP].key}-rank0.json.gz"]


def test_second_recordings_come_beside_the_first(call: Callable[..., Result], filled: Filled, tmp_path: Path) -> None:
    first, second = filled.data[TWICE]
    assert call("trace", "get", "bb", "-o", "x.json.gz").exit_code == 0
    assert there(tmp_path) == ["second_pass", "second_pass/x.json.gz", "x.json.gz"]
    assert (tmp_path / "x.json.gz").read_bytes() == first
    assert (tmp_path / "second_pass" / "x.json.gz").read_bytes() == second


def test_nothing_is_overwritten_without_force(call: Callable[..., Result], filled: Filled, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    taken = tmp_path / "traces" / f"{filled.captures[STARVED].key}-rank1.json.gz"
    taken.write_bytes(b"mine")
    error = call("trace", "get", "aa01", "-o", "traces").exception
    assert isinstance(error, Conflict)
    assert "exists; use --force to replace it" in str(error)
    assert there(tmp_path / "traces") == [taken.name], "nothing came before it was noticed"
    assert taken.read_bytes() == b"mine"
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert isinstance(call("trace", "get", "aa02", "-o", "dangling").exception, Conflict)
    assert call("trace", "get", "aa01", "-o", "traces", "--force").exit_code == 0
    assert taken.read_bytes() == filled.data[STARVED][1]
    assert len(there(tmp_path / "traces")) == 2


@contextmanager
def damaged(path: Path, data: bytes) -> Iterator[None]:
    whole = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("damage", ["shorter", "longer", "other", "gone"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_what_is_not_as_it_was_stored_leaves_nothing(
    call: Callable[..., Result], filled: Filled, tmp_path: Path, damage: str, force: list[str]
) -> None:
    path, data = filled.path(filled.traces(LOOP)[0]["trace"]), filled.data[LOOP][0]
    (tmp_path / "kept").write_bytes(b"mine")
    damages = {"shorter": data[:-10], "longer": data + b"x", "other": data[:-1] + bytes([data[-1] ^ 1]), "gone": b""}
    with damaged(path, damages[damage]):
        if damage == "gone":
            path.unlink()
        for target in ("kept" if force else "new", "folder/new"):
            error = call("trace", "get", "aa02", "-o", target, *force).exception
            assert isinstance(error, TightshipError), error
    assert there(tmp_path) == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"mine"


def test_a_connection_that_breaks_off_leaves_nothing(
    call: Callable[..., Result], filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(http.server.BaseHTTPRequestHandler):
        """Passes everything on; half of a file."""

        def do_GET(self) -> None:
            headers = {"authorization": f"Bearer {ADMIN}"}
            answer = httpx.get(filled.served.url + self.path, headers=headers, trust_env=False)
            self.send_response(answer.status_code)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            half = len(answer.content) // 2 if self.path.endswith("/file") else len(answer.content)
            self.wfile.write(answer.content[:half])

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cut) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        monkeypatch.setenv("TIGHTSHIP_SERVER", f"http://127.0.0.1:{proxy.server_port}")
        error = call("trace", "get", "aa02", "-o", "folder/x").exception
        proxy.shutdown()
        thread.join()
    assert isinstance(error, TightshipError)
    assert "\n" not in str(error)
    assert there(tmp_path) == []


def test_what_is_not_there_is_one_line(call: Callable[..., Result], filled: Filled, tmp_path: Path) -> None:
    error = call("trace", "get", "@").exception
    assert isinstance(error, NotFound)
    assert f"No stored trace of run named '{BARE}'" in str(error)
    assert "it has: 0, 1" in str(call("trace", "get", "aa01", "--rank", "7").exception)
    assert "No run or capture or trace named 'none'" in str(call("trace", "get", "none").exception)
    assert "ambiguous" in str(call("trace", "get", "aa").exception)
    (tmp_path / "file").write_bytes(b"mine")
    assert "a folder: there are the files of 2 ranks" in str(call("trace", "get", "aa01", "-o", "file").exception)
    assert "cannot be written: Not a directory" in str(call("trace", "get", "aa02", "-o", "file/x").exception)
    assert there(tmp_path) == ["file"]


def test_a_file_that_was_removed_for_its_age(call: Callable[..., Result], filled: Filled, tmp_path: Path) -> None:
    trace, key = filled.traces(LOOP)[0]["trace"], filled.captures[LOOP].key
    with filled.served.database.session() as session:
        session.get_one(Trace, trace).removed_ns = 1
    try:
        assert "removed because of their age" in str(call("trace", "get", key).exception)
        assert "No stored trace of run" in str(call("trace", "get", LOOP).exception)
        assert call("trace", "list", "--run", LOOP).stdout.split()[-1] == "removed"
    finally:
        with filled.served.database.session() as session:
            session.get_one(Trace, trace).removed_ns = None
    assert there(tmp_path) == []


# ---- analyze and diff ------------------------------------------------------------------------------------------------


def test_a_run_is_analyzed_as_its_files_are(call: Callable[..., Result], filled: Filled, tmp_path: Path) -> None:
    assert call("trace", "get", "aa02", "-o", "loop.json.gz").exit_code == 0
    of_file, of_run = (call("analyze", name, "--json") for name in ("loop.json.gz", "aa02"))
    key = filled.captures[LOOP].key
    assert f"Capture {key} of run {LOOP}: 1 trace" in of_run.stderr
    named = of_run.stdout.replace(f"{key}/{key}-rank0.json.gz", "loop.json.gz")
    for found in (of_file.stdout, named):
        assert "/tmp" not in found
    first, second = (json.loads(found) for found in (of_file.stdout, named))
    for each in (first, second):
        for rank in each["ranks"]:
            rank.pop("facts", None)
    assert first == second
    assert there(tmp_path) == ["loop.json.gz"]


def test_a_path_that_exists_is_a_path(call: Callable[..., Result], filled: Filled, tmp_path: Path) -> None:
    (tmp_path / "aa02").mkdir()
    assert "No trace in folder aa02" in str(call("analyze", "aa02").exception)


@pytest.mark.parametrize("command", [["analyze"], ["diff", "aa02"]])
def test_what_is_neither_path_nor_run(call: Callable[..., Result], command: list[str]) -> None:
    error = call(*command, "nosuch").exception
    assert isinstance(error, TightshipError)
    assert str(error).startswith("There is no file 'nosuch', and no trace by that id: No run or capture or trace named")
    assert "No trace at nosuch.json" in str(call(*command, "nosuch.json").exception)


def test_one_rank_of_a_run_is_analyzed(call: Callable[..., Result], filled: Filled) -> None:
    found = json.loads(call("analyze", "aa01", "--rank", "0", "--json").stdout)
    assert [rank["source"].rpartition("-")[2] for rank in found["ranks"]] == ["rank0.json.gz"]


def test_two_runs_are_compared_as_their_files_are(call: Callable[..., Result], filled: Filled, tmp_path: Path) -> None:
    for run, name in (("bb03", "before.json.gz"), ("aa02", "after.json.gz")):
        assert call("trace", "get", run, "-o", name).exit_code == 0
    of_files = json.loads(call("diff", "before.json.gz", "after.json.gz", "--json").stdout)
    of_runs = json.loads(call("diff", "bb03", "aa02", "--json").stdout)
    assert of_runs["rows"] == of_files["rows"]
    assert len(of_runs["rows"]) > 5
    for side, run in (("before", TWICE), ("after", LOOP)):
        assert of_runs[side]["path"] == filled.captures[run].key
        assert [name.count("/") for name in of_runs[side]["traces"]] == [1]
