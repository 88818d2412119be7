"""What only the broker of folders can meet: litter in the folder, files cut off, writers killed half-way."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tightship_platform.settings import Settings, load_settings
from tightship_platform.tasks.app import QUEUE, broker_answers, create_celery, send
from tightship_platform.tasks.folder_broker import MAX_MESSAGE_BYTES


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"TIGHTSHIP_HOME": str(tmp_path / "home")})


def consume(settings: Settings, most: int = 1000) -> list[dict[str, Any]]:
    """Take what is in the queue, as a worker does, until it is empty."""
    taken: list[dict[str, Any]] = []
    with create_celery(settings).connection_for_read() as connection:
        channel = connection.channel()
        while len(taken) < most:
            try:
                taken.append(channel._get(QUEUE))
            except Empty:
                return taken
    return taken


def queue(settings: Settings) -> Path:
    return settings.home / "broker" / "queue"


def rejected(settings: Settings) -> list[str]:
    return sorted(p.name for p in (settings.home / "broker" / "rejected").iterdir())


def a_message(settings: Settings) -> dict[str, Any]:
    """A message as Celery writes it."""
    send(settings, "contract.quick", "x", "y")
    (file,) = queue(settings).glob("*.msg")
    message: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return message


def changed(**changes: Any) -> Callable[[dict[str, Any]], bytes]:
    """Takes a good message and spoils it; `a__b` names a key below a key."""

    def spoil(message: dict[str, Any]) -> bytes:
        for name, value in changes.items():
            target = message
            *path, last = name.split("__")
            for key in path:
                target = target[key]
            target[last] = value
        return json.dumps(message).encode()

    return spoil


def body(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


LITTER: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "empty": lambda _: b"",
    "cut-off": lambda m: json.dumps(m).encode()[:100],
    "no-json": lambda _: b"\x80\x04\x95 a pickle, perhaps",
    "not-utf8": lambda _: b'{"body": "\xff"}',
    "list": lambda _: b"[1, 2, 3]",
    "deep": lambda _: b"[" * 100_000,
    "large": lambda _: b" " * (MAX_MESSAGE_BYTES + 1),
    "no-properties": changed(properties=None),
    "no-delivery-tag": changed(properties__delivery_tag=None),
    "no-delivery-info": changed(properties__delivery_info="x"),
    "task-is-list": changed(headers__task=["x"]),
    "id-is-number": changed(headers__id=7),
    "eta-is-object": changed(headers__eta={"a": 1}),
    "timelimit-of-three": changed(headers__timelimit=[1, 2, 3]),
    "pickle": changed(**{"content-type": "application/x-python-serialize"}),
    "compressed": changed(headers__compression="application/x-gzip"),
    "other-encoding": changed(properties__body_encoding="rot13"),
    "body-no-base64": changed(body="§§§"),
    "body-no-json": changed(body=base64.b64encode(b"\x80\x04").decode()),
    "body-of-two": changed(body=body([[], {}])),
    "args-is-object": changed(body=body([{}, {}, {}])),
}


@pytest.mark.parametrize("kind", LITTER)
def test_what_is_no_task_message_is_set_aside_and_the_next_one_arrives(settings: Settings, kind: str) -> None:
    litter = LITTER[kind](a_message(settings))
    name = f"0000_{kind}.{QUEUE}.msg"
    (queue(settings) / name).write_bytes(litter)
    assert send(settings, "contract.quick", "x", "after")
    (message,) = consume(settings)
    assert json.loads(base64.b64decode(message["body"]))[0] == ["x", "after"]
    assert rejected(settings) == [name]


def test_folders_links_and_files_of_others_in_the_queue_are_left_or_set_aside(settings: Settings) -> None:
    assert broker_answers(settings)
    folder = queue(settings)
    (folder / f"0_folder.{QUEUE}.msg").mkdir()
    (folder / f"1_dangling.{QUEUE}.msg").symlink_to(folder / "nowhere")
    (folder / "README.txt").write_text("of somebody else")
    (folder / "2_x.another-queue.msg").write_text("for another queue")
    assert send(settings, "contract.quick", "x", "after")
    assert len(consume(settings)) == 1
    assert {p.name for p in folder.iterdir()} == {"README.txt", "2_x.another-queue.msg"}


@given(data=st.binary(max_size=300))
@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_at_all_end_in_the_rejected_folder(settings: Settings, data: bytes) -> None:
    assert broker_answers(settings)
    (queue(settings) / f"0_fuzz.{QUEUE}.msg").write_bytes(data)
    assert consume(settings) == []
    assert not list(queue(settings).iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b"[[1]]", b'"x"', b"\xff\xfe"])
def test_a_binding_table_that_was_cut_off_stops_nobody(settings: Settings, content: bytes) -> None:
    assert send(settings, "contract.quick", "x", "first")
    table = settings.home / "broker" / "control" / f"{QUEUE}.exchange"
    table.parent.mkdir(exist_ok=True)
    table.write_bytes(content)
    assert send(settings, "contract.quick", "x", "second")
    assert len(consume(settings)) == 2


def test_messages_come_out_in_the_order_in_which_they_went_in(settings: Settings) -> None:
    for number in range(50):
        assert send(settings, "contract.quick", "x", number)
    assert [json.loads(base64.b64decode(m["body"]))[0][1] for m in consume(settings)] == list(range(50))


def test_many_readers_and_writers_at_once_lose_and_double_nothing(settings: Settings) -> None:
    writers, each = 4, 25
    taken: list[dict[str, Any]] = []
    done = threading.Event()

    def write(number: int) -> None:
        for i in range(each):
            send(settings, "contract.quick", str(number), i)

    def read() -> None:
        while not done.is_set() or any(queue(settings).glob("*.msg")):
            taken.extend(consume(settings, most=10))

    assert broker_answers(settings)
    readers = [threading.Thread(target=read) for _ in range(3)]
    senders = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in (*readers, *senders):
        thread.start()
    for thread in senders:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    seen = [tuple(json.loads(base64.b64decode(m["body"]))[0]) for m in taken]
    assert sorted(seen) == sorted((str(n), i) for n in range(writers) for i in range(each))
    assert rejected(settings) == []


def test_folders_that_somebody_removed_are_made_again(settings: Settings) -> None:
    assert send(settings, "contract.quick", "x", "lost")
    consume(settings)
    for name in ("queue", "processed"):
        (settings.home / "broker" / name).rmdir()
    assert consume(settings) == []
    assert send(settings, "contract.quick", "x", "found")
    assert len(consume(settings)) == 1


def test_the_folders_are_closed_to_other_users(settings: Settings) -> None:
    assert broker_answers(settings)
    for folder in (settings.home / "broker").iterdir():
        assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="no /dev/full on this system")
def test_a_message_that_cannot_be_written_is_reported_and_leaves_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker_answers(settings)

    def on_a_full_disk(dir: Path, prefix: str, suffix: str) -> tuple[int, str]:
        name = str(dir / f"{prefix}x{suffix}")
        Path(name).touch()
        return os.open("/dev/full", os.O_WRONLY), name

    monkeypatch.setattr("tightship_platform.tasks.folder_broker.tempfile.mkstemp", on_a_full_disk)
    assert send(settings, "contract.quick", "x", "y") is False
    assert not list(queue(settings).iterdir())
