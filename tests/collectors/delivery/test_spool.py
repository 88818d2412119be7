from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from full_disk import no_file_beyond

from tightship_collectors.delivery import spool as spools
from tightship_collectors.delivery.spool import BLOCK, KEPT_ASIDE, Spool


def drain(spool: Spool) -> list[bytes]:
    found = []
    while (entry := spool.peek()) is not None:
        found.append(entry.body)
        spool.done(entry)
    return found


def test_entries_leave_in_order_and_survive_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(5):
        spool.put("batches" if number % 2 else "runs", b"%d" % number)
    first = spool.peek()
    assert first is not None
    assert (first.kind, first.body) == ("runs", b"0")
    assert spool.peek() == first  # it stays until it is done
    spool.done(first)
    spool = Spool(tmp_path)
    spool.put("batches", b"5")
    assert spool.backlog() == (5, 5 * BLOCK)
    assert drain(spool) == [b"1", b"2", b"3", b"4", b"5"]
    assert spool.backlog() == (0, 0)
    assert list((tmp_path / "queue").iterdir()) == []


def test_order_holds_when_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    for clock in (100, 50, 50, 20):
        monkeypatch.setattr(spools, "now_ns", lambda clock=clock: clock)
        spool.put("batches", b"%d" % spool.backlog()[0])
    spool = Spool(tmp_path)
    spool.put("batches", b"4")
    assert drain(spool) == [b"0", b"1", b"2", b"3", b"4"]


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.put("batches", b"secret")
    (file,) = (tmp_path / "spool" / "queue").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-3]),
        lambda file: file.write_bytes(file.read_bytes() + b"x"),
        lambda file: file.write_bytes(file.read_bytes().replace(b"body", b"BODY")),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"\0" * 5000),
        lambda file: file.write_bytes(b"tightship 1 notanumber zzz\nbody 1"),
        lambda file: (file.unlink(), file.mkdir()),
    ],
)
def test_a_damaged_entry_is_set_aside_and_blocks_nobody(
    spoil: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path)
    for number in range(3):
        spool.put("batches", b"body %d" % number)
    damaged = sorted((tmp_path / "queue").iterdir())[1]
    spoil(damaged)  # type: ignore[operator]
    assert drain(Spool(tmp_path)) == [b"body 0", b"body 2"]
    assert [f.name for f in (tmp_path / "aside").iterdir()] == [damaged.name]
    assert len(caplog.records) == 1


def test_what_is_set_aside_is_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(KEPT_ASIDE + 20):
        spool.put("batches", b"%d" % number)
        entry = spool.peek()
        assert entry is not None
        spool.set_aside(entry, "test")
    kept = sorted((tmp_path / "aside").iterdir())
    assert len(kept) == KEPT_ASIDE
    assert kept[-1].read_bytes().endswith(b"\n%d" % (KEPT_ASIDE + 19))


def test_strangers_and_drafts_in_the_folder_do_not_count(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put("batches", b"1")
    (tmp_path / "queue" / "readme.txt").write_text("hello")
    (tmp_path / "queue" / "00000000000000000001.batches.new").write_text("half")
    spool = Spool(tmp_path)
    assert drain(spool) == [b"1"]
    assert [f.name for f in (tmp_path / "queue").iterdir()] == ["readme.txt"]


def test_a_full_spool_drops_the_oldest_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path, max_bytes=10 * BLOCK)
    for number in range(25):
        spool.put("batches", b"%d" % number)
    assert (spool.dropped, spool.backlog()) == (15, (10, 10 * BLOCK))
    assert drain(spool) == [b"%d" % number for number in range(15, 25)]
    assert [r.message for r in caplog.records] == [
        f"The spool {tmp_path}/queue is full: the oldest records are dropped"
    ]


def test_an_entry_that_is_dropped_while_it_is_sent_is_no_trouble(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=2 * BLOCK)
    spool.put("batches", b"0")
    sent = spool.peek()
    for number in range(1, 5):
        spool.put("batches", b"%d" % number)
    assert sent is not None
    spool.done(sent)
    spool.set_aside(sent, "too late")
    assert drain(spool) == [b"3", b"4"]


def test_a_full_disk_costs_one_warning_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path)
    spool.put("batches", b"0")
    with no_file_beyond(10):
        for number in range(1, 4):
            spool.put("batches", b"%d" % number)
    assert len(list((tmp_path / "queue").iterdir())) == 1  # no half files
    assert spool.backlog()[0] == 4
    assert len(caplog.records) == 1
    assert "records wait in memory" in caplog.text
    spool.put("batches", b"4")
    assert len(list((tmp_path / "queue").iterdir())) == 5
    assert drain(Spool(tmp_path)) == [b"0", b"1", b"2", b"3", b"4"]


def test_memory_is_bounded_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spools, "_write", full)
    monkeypatch.setattr(spools, "MEMORY_BYTES", 1000)
    for number in range(30):
        spool.put("batches", b"%03d" % number + b"x" * 97)
    assert spool.backlog() == (10, 1000)
    assert spool.dropped == 20
    assert [body[:3] for body in drain(spool)] == [b"%03d" % number for number in range(20, 30)]


def test_a_folder_that_is_taken_away_comes_back(tmp_path: Path) -> None:
    """Somebody cleans up: what comes later is kept in memory until the folder is there again."""
    spool = Spool(tmp_path / "spool")
    spool.put("batches", b"lost")
    for part in ("queue", "aside"):
        for file in (tmp_path / "spool" / part).iterdir():
            file.unlink()
        (tmp_path / "spool" / part).rmdir()
    spool.put("batches", b"1")
    assert list((tmp_path / "spool").iterdir()) == []
    spool.put("batches", b"2")
    assert len(list((tmp_path / "spool" / "queue").iterdir())) == 2
    assert drain(spool) == [b"1", b"2"]


def test_nothing_that_put_returned_from_is_lost_to_kill_9(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from tightship_collectors.delivery.spool import Spool\n"
        "spool = Spool(pathlib.Path(sys.argv[1]))\n"
        "for number in range(10**9):\n"
        "    spool.put('batches', b'%d ' % number + b'x' * 20000)\n"
        "    print(number, flush=True)\n"
    )
    for round_ in range(5):
        folder = tmp_path / str(round_)
        writer = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(20 + round_):
            writer.stdout.readline()
        time.sleep(0.003 * round_)
        writer.kill()
        rest = writer.communicate()[0].split()
        said = int(rest[-1]) if rest else 19 + round_
        numbers = [int(body.split()[0]) for body in drain(Spool(folder))]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) - 1 in (said, said + 1)
        assert list((folder / "aside").iterdir()) == []


def test_one_may_put_while_another_delivers(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=100 * BLOCK)
    got: list[bytes] = []
    over = threading.Event()

    def deliver() -> None:
        while not over.is_set() or spool.backlog()[0]:
            entry = spool.peek()
            if entry is not None:
                got.append(entry.body)
                spool.done(entry)

    thread = threading.Thread(target=deliver)
    thread.start()
    for number in range(300):
        spool.put("batches", b"%d" % number)
        if spool.backlog()[0] > 50:
            time.sleep(0.01)
    over.set()
    thread.join(20)
    assert got == [b"%d" % number for number in range(300)]
    assert list((tmp_path / "queue").iterdir()) == []
