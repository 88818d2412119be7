"""Dumps of a flight recorder, written as a rank of a hung job leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORLD = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}


def entry(seq: int, name: str = "all_reduce", state: str = "scheduled", **fields: Any) -> dict[str, Any]:
    return {
        "record_id": fields.pop("order", seq),
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": seq,
        "p2p_seq_id": seq,
        "profiling_name": f"nccl:{name}",
        "is_p2p": name.startswith(("send", "recv")),
        "state": state,
        "retired": state == "completed",
        "time_created_ns": 1_800_000_000_000_000_000 + seq,
        "input_sizes": [[8]],
        "output_sizes": [[8]],
    } | fields


def write_dumps(folder: Path, ranks: dict[int, list[dict[str, Any]]], enqueued: dict[int, int] | None = None) -> None:
    """One dump for each rank, of these entries."""
    for rank, entries in ranks.items():
        last = (enqueued or {}).get(rank, max((e["collective_seq_id"] for e in entries), default=0))
        done = max((e["collective_seq_id"] for e in entries if e["retired"]), default=last if not entries else 0)
        status = {"last_enqueued_collective": last, "last_started_collective": -1, "last_completed_collective": done}
        dump = {"version": "2.9", "pg_config": {"0": WORLD}, "pg_status": {"0": status}, "entries": entries}
        (folder / f"_dump_{rank}").write_text(json.dumps(dump))
