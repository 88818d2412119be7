"""Delivery against a real HTTP server on this machine that answers as the test tells it."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S, wait_for

from tightship_collectors.delivery import held_back
from tightship_collectors.delivery import pause as pauses
from tightship_collectors.delivery import sender as senders
from tightship_collectors.delivery import spool as spools
from tightship_collectors.delivery.held_back import MAX_REFUSALS
from tightship_collectors.delivery.pause import Pause
from tightship_collectors.delivery.sender import MAX_ATTEMPTS, Sender
from tightship_collectors.delivery.spool import Spool
from tightship_platform.client import ApiClient
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.wire import MAX_HEARTBEAT_RUNS, Heartbeat, LiveRun


class Server:
    """Takes what comes. `answer(path, body)` gives a status, or a status and a body."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        self.answer: Callable[[str, Any], Any] = lambda path, body: 200
        self.port = 0
        self._http: ThreadingHTTPServer | None = None
        self.start()

    def start(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                path = self.path.removeprefix("/api/v1")
                answer = server.answer(path, body)
                status, text = answer if isinstance(answer, tuple) else (answer, json.dumps({"error": f"no: {answer}"}))
                if status < 300:
                    server.got.append((path, body))
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def bodies(self, path: str) -> list[Any]:
        return [body for where, body in self.got if where == path]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(senders, "MAX_PAUSE_S", 0.1)
    monkeypatch.setattr(senders, "MAX_HEARTBEAT_PAUSE_S", 0.1)
    monkeypatch.setattr(senders, "LOOK_FOR_RECORDS_S", 0.1)


@pytest.fixture
def started(server: Server, tmp_path: Path) -> Iterator[tuple[Sender, Spool]]:
    spool = Spool(tmp_path / "spool")
    client = ApiClient(Settings(home=tmp_path, server=f"http://127.0.0.1:{server.port}"))
    sender = Sender(client, spool, records_dir=tmp_path / "spool" / "runs")
    sender.start()
    yield sender, spool
    sender.stop(2.0)
    client.close()
    # A request under way goes on; what it says would be heard in the next test.
    wait_for(lambda: not any(thread.name == "sender" for thread in threading.enumerate()))


def put(spool: Spool, sender: Sender, *numbers: int) -> None:
    for number in numbers:
        spool.put("batches", json.dumps({"n": number}).encode())
    sender.wake()


def heartbeat(time_ns: int = 1) -> Heartbeat:
    return Heartbeat(host="h", time_ns=time_ns, agent_version="1")


def numbers(server: Server) -> list[int]:
    return [body["n"] for body in server.bodies("/batches")]


def test_records_arrive_in_order_and_the_spool_is_empty(server: Server, started: tuple[Sender, Spool]) -> None:
    sender, spool = started
    put(spool, sender, *range(20))
    spool.put("runs", b'{"run": "x"}')
    sender.wake()
    wait_for(lambda: server.bodies("/runs"))
    assert numbers(server) == list(range(20))
    assert server.got[-1] == ("/runs", {"run": "x"})
    wait_for(lambda: spool.backlog() == (0, 0))


def test_nothing_is_missing_after_the_server_was_away(
    server: Server, started: tuple[Sender, Spool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sender, spool = started
    put(spool, sender, 0)
    wait_for(lambda: numbers(server) == [0])
    server.stop()
    put(spool, sender, 1, 2)
    wait_for(lambda: "No tightship server answers" in caplog.text)
    time.sleep(0.3)
    server.start()
    put(spool, sender, 3)
    wait_for(lambda: len(numbers(server)) == 4)
    assert numbers(server) == [0, 1, 2, 3]
    wait_for(lambda: "answers again" in caplog.text)
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_what_is_happening_now_does_not_wait_for_what_was_saved_up(
    server: Server, started: tuple[Sender, Spool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both arrive in order, turn about."""
    sender, spool = started
    server.answer = lambda *_: 503
    clock_ns = now_ns() - 3600 * NS_PER_S
    monkeypatch.setattr(spools, "now_ns", lambda: clock_ns)
    put(spool, sender, *range(20))
    clock_ns = now_ns()
    put(spool, sender, *range(100, 105))
    server.answer = lambda *_: 200
    wait_for(lambda: spool.backlog() == (0, 0))
    arrived = numbers(server)
    assert [number for number in arrived if number < 100] == list(range(20))
    assert [number for number in arrived if number >= 100] == list(range(100, 105))
    assert set(range(100, 105)) <= set(arrived[:11])


def test_an_entry_is_kept_when_the_answer_is_lost(server: Server, started: tuple[Sender, Spool]) -> None:
    """The server may have applied it: saying it twice is harmless, not saying it is a gap."""
    sender, spool = started
    calls: list[int] = []

    def answer(path: str, body: Any) -> int:
        calls.append(body["n"])
        return 503 if len(calls) == 1 else 200

    server.answer = answer
    put(spool, sender, 1, 2)
    wait_for(lambda: numbers(server) == [1, 2])
    assert calls == [1, 1, 2]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_poison_record_is_set_aside_and_the_next_goes_on(
    status: int, server: Server, started: tuple[Sender, Spool], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sender, spool = started
    server.answer = lambda path, body: status if body["n"] == 1 else 200
    put(spool, sender, 0, 1, 2)
    wait_for(lambda: numbers(server) == [0, 2])
    (aside,) = (tmp_path / "spool" / "aside").iterdir()
    assert aside.read_bytes().endswith(b'{"n": 1}')
    assert f"the server refuses it ({status}): no: {status}" in caplog.text


def test_rows_that_the_server_keeps_no_longer_are_counted_and_said_once(
    server: Server, started: tuple[Sender, Spool], caplog: pytest.LogCaptureFixture
) -> None:
    sender, spool = started
    answers: dict[int, Any] = {1: {"too_old": 2}, 2: {"too_old": 3}, 3: {"too_old": 0}, 4: {"too_old": "x"}, 5: [7]}
    server.answer = lambda path, body: (200, json.dumps(answers[body["n"]]))
    put(spool, sender, *answers)
    wait_for(lambda: spool.backlog() == (0, 0))
    assert numbers(server) == list(answers)
    wait_for(lambda: sender.too_old == 5)
    assert [record.message for record in caplog.records if "keeps no samples" in record.message] == [
        "The server keeps no samples of days as old as some of this host's: they are not stored"
    ]


def test_rows_that_the_server_refuses_are_counted_and_said_when_it_begins(
    server: Server, started: tuple[Sender, Spool], caplog: pytest.LogCaptureFixture
) -> None:
    sender, spool = started
    answers: dict[int, Any] = {
        1: {"refused": 2, "refusal": "Steps is -1"},
        2: {"refused": 1, "refusal": "Steps is -2"},
        3: {"rows": 5},  # as an older server answers
        4: {"refused": 4, "refusal": None},
        5: {"refused": "x"},
    }
    server.answer = lambda path, body: (200, json.dumps(answers[body["n"]]))
    put(spool, sender, *answers)
    wait_for(lambda: spool.backlog() == (0, 0))
    wait_for(lambda: sender.refused == 7)
    assert [record.message for record in caplog.records if "refuses" in record.message] == [
        "The server refuses 2 rows of this host: Steps is -1",
        "The server refuses 4 rows of this host: None",
    ]


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_token_keeps_the_records_and_is_said_once(
    status: int, server: Server, started: tuple[Sender, Spool], caplog: pytest.LogCaptureFixture
) -> None:
    sender, spool = started
    server.answer = lambda path, body: status
    put(spool, sender, *range(3))
    sender.offer(heartbeat())
    wait_for(lambda: "set TIGHTSHIP_TOKEN" in caplog.text)
    time.sleep(0.5)
    assert spool.backlog()[0] == 3
    assert caplog.text.count("set TIGHTSHIP_TOKEN") == 1
    server.answer = lambda path, body: 200
    wait_for(lambda: numbers(server) == [0, 1, 2])


def test_a_record_that_breaks_the_server_blocks_the_others_for_a_while_only(
    server: Server, started: tuple[Sender, Spool], tmp_path: Path
) -> None:
    sender, spool = started
    tries: list[int] = []

    def answer(path: str, body: Any) -> int:
        tries.append(body["n"])
        return 500 if body["n"] == 1 else 200

    server.answer = answer
    put(spool, sender, 0, 1, 2)
    wait_for(lambda: numbers(server) == [0, 2])
    assert tries.count(1) == MAX_ATTEMPTS
    assert len(list((tmp_path / "spool" / "aside").iterdir())) == 1


@pytest.mark.parametrize("later", [408, 429, 503])
def test_a_record_that_the_server_always_puts_off_blocks_no_other_and_is_set_aside(
    later: int,
    server: Server,
    started: tuple[Sender, Spool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(held_back, "HOLD_AFTER_S", 0.2)
    monkeypatch.setattr(held_back, "LONGEST_PAUSE_S", 0.02)
    sender, spool = started
    aside = tmp_path / "spool" / "aside"
    left = tmp_path / "spool" / "runs"
    left.mkdir()
    tries: list[Any] = []

    def answer(path: str, body: Any) -> int:
        tries.append(body)
        return later if body in ({"n": 1}, {"run": "poison"}) else 200

    server.answer = answer
    (left / "1.json.tmp").write_text('{"run": "poison"}')
    (left / "1.json.tmp").rename(left / "1.json")
    put(spool, sender, 0, 1, 2)
    wait_for(lambda: numbers(server) == [0, 2])
    assert list(aside.iterdir()) == [], "one that passed is no proof"
    number = 3
    while len(list(aside.iterdir())) < 2:
        put(spool, sender, number)
        wait_for(lambda: numbers(server)[-1] == number)  # noqa: B023
        number += 1
    assert numbers(server) == [0, *range(2, number)]
    assert min(tries.count({"n": 1}), tries.count({"run": "poison"})) >= MAX_REFUSALS
    said = f"the server took other records and put this one off {MAX_REFUSALS} times: no: {later}"
    assert caplog.text.count(said) == 2
    wait_for(lambda: spool.backlog() == (0, 0))
    assert list(left.iterdir()) == []


def test_nothing_is_set_aside_while_the_server_takes_nothing(
    server: Server,
    started: tuple[Sender, Spool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_back, "HOLD_AFTER_S", 0.0)
    monkeypatch.setattr(held_back, "LONGEST_PAUSE_S", 0.01)
    sender, spool = started
    tries: list[int] = []

    def answer(path: str, body: Any) -> int:
        tries.append(body["n"])
        return 503

    server.answer = answer
    put(spool, sender, 1, 2, 3)
    wait_for(lambda: min(tries.count(n) for n in (1, 2, 3)) > MAX_REFUSALS)
    assert list((tmp_path / "spool" / "aside").iterdir()) == []
    server.answer = lambda path, body: 200
    wait_for(lambda: sorted(numbers(server)) == [1, 2, 3])


@pytest.mark.parametrize("answer", [404, (200, "<html>a captive portal</html>")])
def test_something_else_that_answers_gets_nothing(
    answer: Any, server: Server, started: tuple[Sender, Spool], tmp_path: Path
) -> None:
    sender, spool = started
    server.answer = lambda path, body: answer
    put(spool, sender, 1)
    time.sleep(0.5)
    assert spool.backlog()[0] == 1
    assert list((tmp_path / "spool" / "aside").iterdir()) == []


def test_only_the_newest_heartbeat_matters(server: Server, started: tuple[Sender, Spool]) -> None:
    sender, _ = started
    server.stop()
    for number in range(1, 20):
        sender.offer(heartbeat(number))
        time.sleep(0.01)
    server.start()
    wait_for(lambda: server.bodies("/hosts/heartbeat"))
    time.sleep(0.2)
    assert [body["time_ns"] for body in server.bodies("/hosts/heartbeat")] == [19]


def test_a_heartbeat_passes_a_backlog_but_not_the_records_of_its_moment(
    server: Server, started: tuple[Sender, Spool], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, spool = started
    monkeypatch.setattr(senders, "MAX_HEARTBEAT_DELAY_S", 3600.0)
    put(spool, sender, 1, 2)
    sender.offer(heartbeat())
    wait_for(lambda: len(server.got) == 3)
    assert [path for path, _ in server.got] == ["/batches", "/batches", "/hosts/heartbeat"]
    server.got.clear()

    offered = threading.Event()

    def slow(path: str, body: Any) -> int:
        offered.wait(PATIENCE_S)
        return 200

    server.answer = slow
    monkeypatch.setattr(senders, "MAX_HEARTBEAT_DELAY_S", 0.0)
    put(spool, sender, *range(20))
    sender.offer(heartbeat(2))
    offered.set()
    wait_for(lambda: len(server.got) == 21)
    assert [path for path, _ in server.got].index("/hosts/heartbeat") <= 1, "after the record that was under way"


def test_a_heartbeat_of_many_runs_goes_in_parts(server: Server, started: tuple[Sender, Spool]) -> None:
    """The server takes so many at once; what the parts say adds up."""
    sender, _ = started
    runs = [LiveRun(run=f"r{number}") for number in range(2 * MAX_HEARTBEAT_RUNS + 1)]
    sender.offer(Heartbeat(host="h", time_ns=1, agent_version="1", runs=runs))
    wait_for(lambda: len(server.bodies("/hosts/heartbeat")) == 3)
    parts = [[run["run"] for run in body["runs"]] for body in server.bodies("/hosts/heartbeat")]
    assert [len(part) for part in parts] == [MAX_HEARTBEAT_RUNS, MAX_HEARTBEAT_RUNS, 1]
    assert [run for part in parts for run in part] == [run.run for run in runs]


def test_a_refused_heartbeat_is_said_once_and_records_still_flow(
    server: Server, started: tuple[Sender, Spool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sender, spool = started
    server.answer = lambda path, body: 422 if "heartbeat" in path else 200
    for number in range(4):
        put(spool, sender, number)
        sender.offer(heartbeat(number + 1))
        time.sleep(0.1)
    wait_for(lambda: numbers(server) == [0, 1, 2, 3])
    assert [r.message for r in caplog.records if "tightship" in r.name] == [
        "The server refuses this host's heartbeats: no: 422"
    ]


def test_records_that_launchers_left_are_delivered(
    server: Server, started: tuple[Sender, Spool], tmp_path: Path
) -> None:
    _, spool = started
    left = tmp_path / "spool" / "runs"
    left.mkdir()
    server.answer = lambda path, body: 422 if body.get("run") == "poison" else 200
    (left / "half.json.tmp").write_text('{"run": "still being wri')
    (left / "1.json").write_text('{"run": "a"}')
    (left / "2.json").write_text("{ not json")
    (left / "3.json").write_text('["a list"]')
    (left / "4.json").write_text('{"run": "poison"}')
    (left / "5.json").symlink_to("/etc/passwd")
    time.sleep(0.02)
    (left / "0.json").write_text('{"run": "b"}')
    wait_for(lambda: len(server.got) == 2)
    assert server.bodies("/runs") == [{"run": "a"}, {"run": "b"}]
    wait_for(lambda: {f.name for f in left.iterdir()} == {"half.json.tmp", "5.json"})
    assert {f.name for f in (tmp_path / "spool" / "aside").iterdir()} == {"2.json", "3.json", "4.json"}
    assert spool.backlog() == (0, 0)


def test_records_that_launchers_left_wait_for_the_server(
    server: Server, started: tuple[Sender, Spool], tmp_path: Path
) -> None:
    server.answer = lambda path, body: 503
    left = tmp_path / "spool" / "runs"
    left.mkdir()
    (left / "1.json").write_text('{"run": "a"}')
    time.sleep(0.5)
    assert (left / "1.json").exists()
    server.answer = lambda path, body: 200
    wait_for(lambda: server.bodies("/runs") == [{"run": "a"}])


def test_stop_delivers_what_it_can_in_its_time(server: Server, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    client = ApiClient(Settings(home=tmp_path, server=f"http://127.0.0.1:{server.port}"))
    sender = Sender(client, spool, records_dir=tmp_path)
    put(spool, sender, *range(5))
    sender.start()
    sender.stop(PATIENCE_S)
    assert numbers(server) == [0, 1, 2, 3, 4]
    go_on = threading.Event()

    def hang(path: str, body: Any) -> int:
        go_on.wait(PATIENCE_S)
        return 200

    server.answer = hang
    sender = Sender(client, spool, records_dir=tmp_path)
    put(spool, sender, 5)
    sender.start()
    sender.stop(0.3)
    assert spool.backlog()[0] == 1, "it does not wait for the answer"
    go_on.set()


def test_pauses_grow_within_bounds_and_differ() -> None:
    firsts = set()
    for _ in range(20):
        pause = Pause(1.0)
        waits = []
        for _ in range(10):
            before = time.monotonic()
            pause.failed()
            waits.append(pause.until_s - before)
        firsts.add(round(waits[0], 6))
        assert all(0.005 * 2**n <= wait <= 0.0101 * 2**n + 0.01 for n, wait in enumerate(waits[:6]))
        assert all(0.5 <= wait <= 1.01 for wait in waits[7:])
    assert len(firsts) > 10
    pause.succeeded()
    assert pause.until_s == 0


def test_who_is_asked_to_wait_comes_no_earlier_and_not_with_all_others() -> None:
    waits = set()
    for _ in range(20):
        pause = Pause(1.0)
        before = time.monotonic()
        pause.failed(10.0)
        waits.add(round(pause.until_s - before, 3))
    assert min(waits) >= 10.0
    assert max(waits) <= 15.1
    assert len(waits) > 10
