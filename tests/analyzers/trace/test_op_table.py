"""Op tables that are wrong: one clear line, or a whole analysis with a warning."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import op_tables
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from op_tables import Row, job_rows

from tightship_analyzers import stragglers
from tightship_analyzers.stragglers import Limits, OpTableError
from tightship_analyzers.trace.op_table.table import REQUIRED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return op_tables.write(tmp_path / "job.parquet", job_rows())


def changed(rows: list[Row], column: str, value: Any, row: int = 7) -> list[Row]:
    return [old | {column: value} if number == row else old for number, old in enumerate(rows)]


def analyse(path: Path, **limits: int) -> stragglers.WhatIf:
    bounds = Limits(**limits)
    return stragglers.WhatIf(stragglers.open(path, limits=bounds), limits=bounds)


def assert_one_line(path: Path, what: str, **limits: int) -> None:
    with pytest.raises(OpTableError) as caught:
        analyse(path, **limits)
    message = str(caught.value)
    assert re.search(what, message), message
    assert "\n" not in message and str(path) in message and len(message) < 1500


def test_columns_and_times(path: Path) -> None:
    table = stragglers.open(path)
    assert len(table) == len(job_rows()) and table.warnings == []
    assert table.start_ns.min() == 0 and (table.end_ns >= table.start_ns).all()
    assert set(table.step.tolist()) == {3, 4} and set(table.rank.tolist()) == {0, 1, 2, 3}


def test_a_url_is_as_good_as_a_path(path: Path) -> None:
    assert analyse(path).slowdown == stragglers.WhatIf(stragglers.open(f"file://{path}")).slowdown
    with pytest.raises(OpTableError, match="No op table at memory://nothing"):
        stragglers.open("memory://nothing.parquet")
    with pytest.raises(OpTableError, match="cannot be opened"):
        stragglers.open("nosuchscheme://host/table.parquet")


def test_times_since_the_epoch_keep_their_precision(path: Path, tmp_path: Path) -> None:
    rows = [row | {"start_ts": row["start_ts"] + 1.79e9 + 100 * row["step"]} for row in job_rows()]
    later = analyse(op_tables.write(tmp_path / "later.parquet", rows))
    assert later.actual_ns.tolist() == analyse(path).actual_ns.tolist()


def test_files_that_are_no_table(tmp_path: Path) -> None:
    file = tmp_path / "file.parquet"
    assert_one_line(file, "No op table at")
    assert_one_line(tmp_path, "not a regular file")
    os.mkfifo(tmp_path / "pipe")
    assert_one_line(tmp_path / "pipe", "not a regular file")
    for content in (b"", b"PAR", b'{"traceEvents": []}', b"\x1f\x8b" + b"x" * 50):
        file.write_bytes(content)
        assert_one_line(file, "not a Parquet file")
    file.write_bytes(b"PAR1" + b"\xff" * 64 + b"PAR1")
    assert_one_line(file, "damaged")


def test_a_table_cut_off_anywhere(path: Path) -> None:
    content = path.read_bytes()
    for size in range(4, len(content), 997):
        path.write_bytes(content[:size])
        assert_one_line(path, rf"cut off at byte {size}\b")


@pytest.mark.sliced(1)
@pytest.mark.parametrize("part", range(8))
def test_a_table_with_broken_bytes(path: Path, part: int) -> None:
    """Each byte of the file's directory, and some before it: a clear line, or a table that is still one.

    Reading every column's entry of such a directory makes pyarrow end the process.
    """
    content = path.read_bytes()
    directory = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    refused = 0
    for position in (*range(4, directory, 29), *range(directory, len(content) - 4))[part::8]:
        broken = bytearray(content)
        broken[position] ^= 1
        path.write_bytes(broken)
        try:
            analyse(path)
        except OpTableError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 6


@pytest.mark.parametrize("column", REQUIRED)
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    rows = [{name: value for name, value in row.items() if name != column} for row in job_rows()]
    assert_one_line(op_tables.write(tmp_path / "job.parquet", rows), f"has no column {column};")


def test_chunks_and_microbatches_are_optional(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in REQUIRED} for row in job_rows(stages=3)]
    assert analyse(op_tables.write(tmp_path / "job.parquet", rows)).slowdown == 1.0


WRONG: list[tuple[str, Any, str]] = [
    ("stage", None, "column stage has 1 missing"),
    ("optype", None, "column optype has 1 missing"),
    ("start_ts", float("nan"), "start_ts .* not finite"),
    ("start_ts", float("inf"), "start_ts .* not finite"),
    ("duration", -0.5, r"duration is -0\.5 s"),
    ("duration", 1e12, r"takes 1e\+12 s; expected times in seconds"),
    ("dp_rank", -1, "dp_rank holds -1"),
    ("dp_rank", 5, "lacks dp_rank 2 but has 5"),
    ("stage", 2**40, "stage holds 1099511627776; expected less than"),
    ("seq_id", 2**62, "seq_id holds .* expected 0 to 1099511627776"),
    ("rank", 99, r"has the ranks \d and 99"),
    ("mc", -2, "mc holds -2"),
]


@pytest.mark.parametrize(("column", "value", "what"), WRONG)
def test_a_wrong_value_is_named(tmp_path: Path, column: str, value: Any, what: str) -> None:
    assert_one_line(op_tables.write(tmp_path / "job.parquet", changed(job_rows(), column, value)), what)


def test_a_column_of_another_kind(tmp_path: Path) -> None:
    rows = job_rows()
    texts = [row | {"stage": str(row["stage"])} for row in rows]
    assert_one_line(op_tables.write(tmp_path / "a.parquet", texts), "stage holds object; expected whole numbers")
    numbers = [row | {"optype": 3} for row in rows]
    assert_one_line(op_tables.write(tmp_path / "b.parquet", numbers), "optype holds int64; expected text")
    many = [row | {"optype": f"op{number}"} for number, row in enumerate(rows * 8)]
    assert_one_line(op_tables.write(tmp_path / "c.parquet", many), "optype has .* names; expected op types")
    none = [row | {"optype": "matmul"} for row in rows]
    assert_one_line(op_tables.write(tmp_path / "d.parquet", none), "no operation of a known type")


def test_a_table_without_rows(tmp_path: Path) -> None:
    file = tmp_path / "job.parquet"
    pq.write_table(pa.Table.from_pylist(job_rows()).slice(0, 0), file)
    assert_one_line(file, "has no rows")


def test_absurd_sizes_are_refused_before_they_are_read(path: Path) -> None:
    assert_one_line(path, "at most 10 are read", rows=10)
    assert_one_line(path, "unpacks to", uncompressed_bytes=100)
    assert_one_line(path, "expected less than 1", stages=1)
    assert_one_line(path, "expected at most 20", ops_per_lane=20)


def test_unknown_types_are_left_out_and_named(tmp_path: Path) -> None:
    rows = job_rows()
    rows += [row | {"optype": "new\x1b[31m-op\n"} for row in rows if row["optype"] == "gc"]
    job = analyse(op_tables.write(tmp_path / "job.parquet", rows))
    assert job.slowdown == 1.0
    assert len(job.warnings) == 1 and job.warnings[0].isprintable()
    assert "8 operations of the unknown type new" in job.warnings[0]


def test_a_step_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    rows = job_rows(steps=(3, 4, 5, 6, 9))
    lost = [row for row in rows if row["step"] == 4][5]
    twice = [row for row in rows if row["step"] == 9][5]
    job = analyse(op_tables.write(tmp_path / "job.parquet", [row for row in [*rows, twice] if row is not lost]))
    assert job.grid.steps.tolist() == [3, 5, 6] and job.slowdown == 1.0
    assert job.warnings == ("2 of 5 steps left out, as their operations differ from the others': 4, 9",)


def test_no_whole_step(tmp_path: Path) -> None:
    rows = job_rows(steps=(3,))
    assert_one_line(op_tables.write(tmp_path / "job.parquet", rows[1:]), "no step with the same operations")


def without(keep: Callable[[Row], bool]) -> list[Row]:
    return [row for row in job_rows(stages=3) if keep(row)]


def test_operations_that_do_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "job.parquet"
    ends = without(lambda row: (row["optype"], row["stage"]) != ("forward-recv", 2))
    assert_one_line(op_tables.write(file, ends), "forward-send 0 of stage 1 has no other end")
    few = without(lambda row: (row["optype"], row["stage"], row["seq_id"]) != ("forward-recv", 1, 3))
    assert_one_line(op_tables.write(file, few), "stage 1 has 3 forward-recv for 4 forward-compute")
    still = [row | {"duration": 0.0} for row in job_rows()]
    assert_one_line(op_tables.write(file, still), "usually take no time")


def test_operations_that_wait_for_themselves(tmp_path: Path) -> None:
    """Stage 0 claims to have gone backward before it went forward."""
    times = {"backward-recv": (0, 1), "backward-compute": (1, 3), "forward-compute": (3, 4), "forward-send": (4, 5)}
    rows = job_rows(dp_ranks=1, microbatches=1)
    for row in rows:
        if row["stage"] == 0 and row["optype"] in times:
            start, end = times[row["optype"]]
            row |= {"start_ts": float(start), "duration": float(end - start)}
    assert_one_line(op_tables.write(tmp_path / "job.parquet", rows), "waits for itself")
