"""What is no dump, or a hostile one, is refused with one line."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tightship_analyzers.commands.why import why
from tightship_analyzers.hangs import read_dumps
from tightship_platform.errors import Invalid, NotFound

EMPTY: dict[str, Any] = {"version": "2.9", "pg_config": {}, "pg_status": {}, "entries": []}


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_nothing_is_called(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "dump_0").write_bytes(pickle.dumps(EMPTY | {"entries": [Evil(mark)]}, protocol))
        with pytest.raises(Invalid, match="a flight recorder's dump"):
            read_dumps([tmp_path])
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02}",
        b"\x80\x02]r\xff\xff\xff\x7f.",  # remembers a value under a number that needs gigabytes
        b"\x80\x02]q\x05.",
        b"{",
        b"[]",
        b"{}garbage",
        json.dumps(EMPTY | {"entries": [{}]}).encode(),
        json.dumps(EMPTY | {"entries": 3}).encode(),
        json.dumps(EMPTY | {"pg_config": []}).encode(),
        json.dumps(EMPTY | {"pg_status": {"0": {}}, "pg_config": {"0": {}}}).encode(),
        b"[" * 100_000,
        pickle.dumps("a text"),
        os.urandom(1000),
    ],
    ids=range(14),
)
def test_what_is_no_dump(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "dump_0").write_bytes(data)
    with pytest.raises(Invalid, match=r"Dump dump_0 is .*; expected a flight recorder's dump"):
        read_dumps([tmp_path])


def test_names(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="No dump"):
        read_dumps([tmp_path / "nowhere"])
    (tmp_path / "job.log").write_text("not a dump")
    with pytest.raises(NotFound, match="end with the rank"):
        read_dumps([tmp_path])
    with pytest.raises(Invalid, match="ends with the rank"):
        read_dumps([tmp_path / "job.log"])
    (tmp_path / "dump_3").write_text(json.dumps(EMPTY))
    (tmp_path / "dump_03.json").write_text(json.dumps(EMPTY))
    with pytest.raises(Invalid, match="one file per rank"):
        read_dumps([tmp_path])


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_text(json.dumps(EMPTY))
    shown = CliRunner().invoke(why, [str(tmp_path)])
    assert shown.exit_code == 0
    assert "No rank waits for another" in shown.output
    printed = CliRunner().invoke(why, [str(tmp_path), "--json"])
    assert json.loads(printed.output)["dumps"]["dumps"] == [0]
