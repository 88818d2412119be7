"""What of series is stored: names and units of others in ours, hosts and devices by labels; the rest is counted."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from records import T0, S
from source_tree import ROOT

from tightship_platform.errors import TooLarge
from tightship_platform.ingest.standards import collected
from tightship_platform.ingest.standards.collected import REFUSED, Collected, Outcome, collect
from tightship_platform.ingest.standards.names import FIGURES
from tightship_platform.ingest.standards.places import Place
from tightship_platform.ingest.standards.series import Series
from tightship_platform.wire import DeviceSample

NOW = T0 + 60 * S
OF_DEVICE = {"Hostname": "h1", "UUID": "GPU-1", "gpu": "0", "modelName": "Test accelerator"}
PLACE = Place(host="h1", uuid="GPU-1", index="0", model="Test accelerator")


def one(name: str, *values: float, at: int = T0, labels: dict[str, str] | None = None) -> Series:
    return Series(name=name, labels=OF_DEVICE if labels is None else labels, values=[(at, value) for value in values])


def stored(found: Collected) -> dict[str, float | int]:
    """Of the one device at the one instant."""
    return found.rows[PLACE][T0] if found.rows else {}


@pytest.mark.parametrize(
    ("name", "value", "metric", "ours"),
    [
        ("DCGM_FI_DEV_FB_USED", 40_960, "memory_used_bytes", 42_949_672_960),
        ("DCGM_FI_PROF_SM_ACTIVE", 0.41, "sm_active_frac", 0.41),
        ("DCGM_FI_PROF_SM_OCCUPANCY", 0.0, "sm_occupancy_frac", 0.0),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1.0000001, "tensor_active_frac", 1.0),
        ("DCGM_FI_PROF_DRAM_ACTIVE", 0.07, "dram_active_frac", 0.07),
        ("DCGM_FI_DEV_GPU_UTIL", 41, "util_frac", 0.41),
        ("DCGM_FI_DEV_POWER_USAGE", 347.215, "power_w", 347.215),
        ("DCGM_FI_DEV_GPU_TEMP", -3, "temperature_c", -3.0),
        ("DCGM_FI_DEV_SM_CLOCK", 1980, "clock_hz", 1_980_000_000),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", 1e9, "pcie_rx_bytes_per_s", 10**9),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", 12.4, "pcie_tx_bytes_per_s", 12),
        ("DCGM_FI_PROF_NVLINK_RX_BYTES", 4.5e11, "nvlink_rx_bytes_per_s", 450_000_000_000),
        ("DCGM_FI_PROF_NVLINK_TX_BYTES", 0, "nvlink_tx_bytes_per_s", 0),
        ("hw.gpu.utilization", 0.5, "util_frac", 0.5),
        ("hw_gpu_utilization_ratio", 0.5, "util_frac", 0.5),
        ("hw.gpu.memory.usage", 2**36, "memory_used_bytes", 2**36),
        ("hw_gpu_memory_usage_bytes", 2**36, "memory_used_bytes", 2**36),
    ],
)
def test_a_metric_of_others_is_ours_in_our_unit(name: str, value: float, metric: str, ours: float) -> None:
    assert name in FIGURES
    found = collect([one(name, value)], NOW)
    assert stored(found) == {metric: ours} and type(stored(found)[metric]) is type(ours)
    assert (found.counts.total(), found.refused) == (0, 0)


def test_every_metric_of_a_device_has_a_source() -> None:
    assert {figure.metric for figure in FIGURES.values()} == {f.name for f in fields(DeviceSample)} - {
        "time_ns",
        "device",
    }


def test_the_document_lists_every_name_and_outcome() -> None:
    text = (ROOT / "docs" / "standards.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    names = {name: row[1].strip("`") for row in rows for name in row[0].replace("`", "").split(", ")}
    assert {name: names[name] for name in FIGURES} == {name: figure.metric for name, figure in FIGURES.items()}
    assert names.keys() == {*FIGURES, *Outcome}
    heard = {row[0].strip("`") for row in rows if row[2] == "refused"}
    assert heard == set(REFUSED)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 9223372036854775794.0, float(0x7FFFFFFFFFFFFFF0), 140737488355328.0, 140737488355330.0],
)
def test_what_says_that_there_is_no_value_is_missing(value: float) -> None:
    for name in ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE"):
        found = collect([one(name, value)], NOW)
        assert not found.rows
        assert (found.counts[Outcome.MISSING], found.refused) == (1, 0)


@pytest.mark.parametrize(
    ("series", "why"),
    [
        (one("DCGM_FI_PROF_SM_ACTIVE", 41.0), "sm_active_frac is 41.0; expected a ratio from 0 to 1"),
        (one("DCGM_FI_DEV_FB_USED", -1), "memory_used_bytes is -1048576"),
        (one("DCGM_FI_DEV_POWER_USAGE", -math.inf), "power_w is -inf"),
        (one("DCGM_FI_DEV_POWER_USAGE", 1, at=0), "Time of DCGM_FI_DEV_POWER_USAGE is 0"),
        (one("DCGM_FI_DEV_POWER_USAGE", 1, at=4_102_444_800 * S), "UTC nanoseconds between the year 2000 and one day"),
        (one("DCGM_FI_DEV_POWER_USAGE", 1, at=-(2**62)), "Time of DCGM_FI_DEV_POWER_USAGE"),
        (one("DCGM_FI_DEV_POWER_USAGE", 1, labels={"gpu": "0"}), "no label names its host"),
        (one("DCGM_FI_DEV_POWER_USAGE", 1, labels={"Hostname": "h1", "gpu": "x"}), "no label names its device"),
        (one("DCGM_FI_DEV_POWER_USAGE", 1, labels={"Hostname": "h\n1", "gpu": "0"}), "Host is 'h\\n1'"),
        (one("DCGM_FI_DEV_POWER_USAGE", 1, labels={"Hostname": "h1", "UUID": "G" * 300}), "Device uuid is"),
        (Series(name="m", labels={}, fault="of no use", others=2), "A series 'm' is of no use: of no use"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason_and_the_rest_kept(series: Series, why: str) -> None:
    found = collect([series, one("DCGM_FI_PROF_SM_ACTIVE", 0.5)], NOW)
    assert stored(found) == {"sm_active_frac": 0.5}
    assert found.refused == found.counts[Outcome.INVALID] == series.size
    assert why in str(found.reason)


def test_the_rest_is_counted() -> None:
    others = [
        one("DCGM_FI_DEV_XID_ERRORS", 0.0, 0.0),
        one("up", 1.0),
        one("hw.gpu.utilization", 0.5, labels=OF_DEVICE | {"hw.gpu.task": "decoder"}),
        Series(name="spread", labels={}, others=3),
        one("DCGM_FI_DEV_FB_USED", 1, labels=OF_DEVICE | {"GPU_I_ID": "1", "GPU_I_PROFILE": "1g.10gb"}),
        one("DCGM_FI_PROF_SM_ACTIVE", 0.5),
        one("DCGM_FI_PROF_SM_ACTIVE", 0.7),
    ]
    found = collect(others, NOW)
    assert stored(found) == {"sm_active_frac": 0.5}
    assert dict(found.counts) == {Outcome.UNKNOWN: 7, Outcome.SLICE: 1, Outcome.DOUBLED: 1}
    assert found.reason is None


@pytest.mark.parametrize(
    ("labels", "host", "uuid"),
    [
        ({"Hostname": "h1", "instance": "10.0.0.1:9400", "UUID": "GPU-1", "gpu": "3"}, "h1", "GPU-1"),
        ({"instance": "gpu17:9400", "gpu": "3"}, "gpu17", None),
        ({"instance": "[fe80::1]:9400", "UUID": "GPU-1"}, "[fe80::1]", "GPU-1"),
        ({"host.name": "h1", "hw.id": "GPU-1"}, "h1", "GPU-1"),
        ({"k8s.node.name": "h1", "service.instance.id": "x:1", "gpu_id": "0"}, "h1", None),
    ],
)
def test_labels_name_the_host_and_the_device(labels: dict[str, str], host: str, uuid: str | None) -> None:
    (place,) = collect([one("DCGM_FI_DEV_POWER_USAGE", 1, labels=labels)], NOW).rows
    assert (place.host, place.uuid) == (host, uuid)


def test_too_many_values_are_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "MAX_VALUES", 3)
    assert collect([one("up", 1.0)] * 3, NOW).counts[Outcome.UNKNOWN] == 3
    for many in ([one("up", 1.0)] * 4, [Series(name="up", labels={})] * 4):
        with pytest.raises(TooLarge, match="more than 3 values"):
            collect(many, NOW)
