"""What an agent remembers of its captures survives it, and what makes no sense is not acted on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tightship_collectors.kineto.manifest import Manifest, ManifestStore, Phase, RankTrace, lease_of
from tightship_collectors.launch.environment import armed
from tightship_platform.errors import Invalid
from tightship_platform.wire import CaptureParams, ExpectedRank, Lease

LEASE: dict[str, Any] = {
    "capture": "c0ffee",
    "run": "0123456789abcdef",
    "params": {
        "duration_ns": 10**9,
        "iterations": None,
        "stacks": True,
        "shapes": True,
        "memory": False,
        "insist": False,
    },
    "attempt": 2,
    "lease_expires_ns": 10**18,
}


def manifest() -> Manifest:
    made = Manifest.of_lease(lease_of(LEASE), run_dir=Path("/tmp/r"), uid=1000, now_ns=5)
    made.ranks = [
        RankTrace(rank=0, pid=10, start_ticks=77, handed_ns=6, start_ns=7, complete=True, bytes=3, sha256="aa"),
        RankTrace(rank=1, pid=11, start_ticks=78),
    ]
    made.tries = 3
    made.reason = "why"
    made.enter(Phase.RECORDING, 9)
    return made


def test_kineto_is_asked_for_files_where_it_may_write() -> None:
    """Newer ones compare the folder as text, and take no path with dots that lead elsewhere."""
    env = armed({"KINETO_ONDEMAND_TRACE_DIR": "/elsewhere"}, key="k", run_dir=Path(manifest().run_dir), steps=True)
    asked = str(manifest().asked_path)
    assert asked.startswith(env["KINETO_ONDEMAND_TRACE_DIR"] + "/")
    assert ".." not in asked


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    ManifestStore(tmp_path).save(manifest())
    loaded, faults = ManifestStore(tmp_path).load()
    assert loaded == [manifest()]
    assert faults == []
    assert loaded[0].expected == [ExpectedRank(rank=0, pid=10), ExpectedRank(rank=1, pid=11)]


def test_every_try_has_files_of_its_own() -> None:
    first, second = manifest(), manifest()
    second.tries += 1
    assert first.asked_path == Path("/tmp/r/traces/c0ffee-2-3.json")
    assert first.asked_path != second.asked_path
    assert first.trace_id != second.trace_id


def test_saving_again_replaces_and_removing_leaves_nothing(tmp_path: Path) -> None:
    store = ManifestStore(tmp_path)
    store.save(manifest())
    changed = manifest()
    changed.enter(Phase.WRITTEN, 20)
    store.save(changed)
    assert store.load() == ([changed], [])
    store.packed(manifest(), 0).touch()
    store.remove("c0ffee")
    assert list(store.root.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"capture": "c0ffee"}',
        json.dumps({"phase": "dancing"}).encode(),
    ],
)
def test_one_that_cannot_be_read_is_dropped_with_a_word(tmp_path: Path, content: bytes) -> None:
    store = ManifestStore(tmp_path)
    store.save(manifest())
    broken = store.folder("broken")
    broken.mkdir()
    (broken / "manifest.json").write_bytes(content)
    loaded, faults = store.load()
    assert loaded == [manifest()]
    assert len(faults) == 1
    assert "broken" in faults[0]
    assert not broken.exists()


def test_one_under_another_name_is_dropped(tmp_path: Path) -> None:
    store = ManifestStore(tmp_path)
    store.save(manifest())
    store.folder("c0ffee").rename(store.folder("other"))
    loaded, faults = store.load()
    assert loaded == []
    assert "c0ffee" in faults[0]


def test_a_lease() -> None:
    assert lease_of(LEASE) == Lease(
        capture="c0ffee",
        run="0123456789abcdef",
        params=CaptureParams(duration_ns=10**9),
        attempt=2,
        lease_expires_ns=10**18,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"capture": "../../etc"},
        {"capture": ".."},
        {"capture": ""},
        {"capture": None},
        {"run": "a/b"},
        {"run": "x\ny"},
        {"params": None},
        {"params": {"duration_ns": 10**9, "log_file": "/etc/passwd"}},
        {"params": {"duration_ns": 10**12}},
        {"params": {"duration_ns": None}},
        {"attempt": "many"},
    ],
)
def test_a_lease_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        lease_of(LEASE | change)


def test_a_lease_that_lacks_a_part_is_refused() -> None:
    for name in LEASE:
        with pytest.raises(Invalid):
            lease_of({key: value for key, value in LEASE.items() if key != name})
    with pytest.raises(Invalid):
        lease_of(["no", "lease"])
