from __future__ import annotations

import itertools

import pytest
from nvml_recording import RecordedNvml

from tightship_collectors.sources import nvml as nvml_source
from tightship_collectors.sources.devices import HostDevices
from tightship_collectors.sources.nvml import NvmlSource
from tightship_collectors.sources.nvml_gpm import MIB
from tightship_platform.wire import DeviceSample

SECOND = 1_000_000_000
ALWAYS = ("time_ns", "device")


def source_of(name: str, *, init_error: str | None = None) -> tuple[RecordedNvml, NvmlSource]:
    nvml = RecordedNvml(name, init_error=init_error)
    ticks = itertools.count(1)
    return nvml, NvmlSource(nvml, clock=lambda: next(ticks) * SECOND)


def known(sample: DeviceSample) -> set[str]:
    return {name for name, value in vars(sample).items() if value is not None} - set(ALWAYS)


def test_a_hopper_gpu_fills_every_column_from_the_second_reading_on() -> None:
    _, source = source_of("h100")
    first, _ = source.read()
    assert known(first) == {"util_frac", "memory_used_bytes", "power_w", "temperature_c", "clock_hz"}
    second, _ = source.read()
    assert vars(second) == {
        "time_ns": second.time_ns,
        "device": "GPU-11111111-aaaa-bbbb-cccc-000000000001",
        "util_frac": 0.97,
        "sm_active_frac": 0.7125,
        "sm_occupancy_frac": 0.385,
        "tensor_active_frac": 0.44,
        "dram_active_frac": 0.52,
        "memory_used_bytes": 42949672960,
        "power_w": 523.456,
        "temperature_c": 61.0,
        "clock_hz": 1_980_000_000,
        "pcie_rx_bytes_per_s": 1024 * MIB,
        "pcie_tx_bytes_per_s": int(12.5 * MIB),
        "nvlink_rx_bytes_per_s": 40960 * MIB,
        "nvlink_tx_bytes_per_s": 40000 * MIB,
    }


def test_nonsense_from_the_driver_is_missing_not_zero() -> None:
    _, source = source_of("h100")
    for _ in range(2):
        source.read()
    third, _ = source.read()
    assert third.sm_active_frac == 1.0  # 100.2 % is rounding
    assert third.sm_occupancy_frac is None  # negative
    assert third.dram_active_frac is None  # NaN
    assert third.pcie_rx_bytes_per_s is None  # faster than any link
    assert third.tensor_active_frac is None  # not reported this time


def test_processes_of_a_shared_gpu_are_distinguished() -> None:
    _, source = source_of("h100")
    source.read()
    first = {p.pid: p for p in source.processes()}
    assert first[4001].util_frac == pytest.approx(0.85)  # the mean of both samples
    assert first[4001].memory_used_bytes == 41_000_000_000
    assert (first[4002].util_frac, first[4002].memory_used_bytes) == (0.0, None)  # the other one was busy
    assert first[4003].device.endswith("2")
    assert first[4003].util_frac == 0.0  # the driver has no sample, and the GPU was idle
    second = {p.pid: p for p in source.processes()}
    assert second[4001].util_frac == pytest.approx(0.4)  # a sample that was seen before does not count again
    assert 4002 not in second
    third = {p.pid: p for p in source.processes()}
    assert third[4001].util_frac is None  # the GPU was busy, but nobody says with whom


def test_an_older_gpu_has_null_where_it_tells_nothing() -> None:
    nvml, source = source_of("t4")
    (first,) = source.read()
    assert known(first) == {"util_frac", "memory_used_bytes", "power_w", "temperature_c"}
    (second,) = source.read()
    assert second.pcie_rx_bytes_per_s == 2_000_000
    assert second.pcie_tx_bytes_per_s is None  # the counter was reset
    assert (second.nvlink_rx_bytes_per_s, second.clock_hz, second.sm_active_frac) == (None, None, None)
    assert second.power_w is None  # failed this time, without being unsupported
    assert nvml.calls["nvmlDeviceGetClockInfo"] == 1  # what is not supported is asked once
    assert source.state().state == "ok"
    assert "GPM) on 0 of 1" in source.state().detail


def test_a_gpu_that_falls_off_the_bus_is_an_error_until_it_is_back() -> None:
    _, source = source_of("t4")
    for _ in range(3):
        (lost,) = source.read()
    assert (lost.util_frac, lost.power_w, lost.temperature_c) == (None, None, None)
    assert source.state().state == "error"
    assert "Tesla T4 GPU-22222222" in source.state().detail
    (back,) = source.read()
    assert back.util_frac == 0.2
    assert source.state().state == "ok"


def test_a_process_keeps_its_gpu_while_the_driver_hesitates() -> None:
    _, source = source_of("t4")
    source.read()
    assert [p.pid for p in source.processes()] == [5001]
    held = list(source.processes())
    assert [(p.pid, p.util_frac) for p in held] == [(5001, None)]


def test_mig_slices_take_the_place_of_their_gpu() -> None:
    _, source = source_of("h100_mig")
    big, small = source.devices()
    assert (big.kind, big.name, big.memory_bytes) == ("mig", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 42412802048)
    assert small.name == "NVIDIA H100 80GB HBM3 MIG 10gb"
    assert {big.uuid, small.uuid} == {f"MIG-44444444-aaaa-bbbb-cccc-00000000000{n}" for n in (1, 2)}
    source.read()
    busy, idle = source.read()
    assert known(busy) == {"util_frac", "sm_active_frac", "memory_used_bytes"}  # power is the whole GPU's
    assert (busy.util_frac, busy.sm_active_frac, idle.sm_active_frac) == (0.6, 0.5, 0.0)
    (process,) = source.processes()
    assert (process.pid, process.device, process.util_frac) == (6001, big.uuid, None)


def test_slices_that_change_are_noticed_and_their_samples_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, source = source_of("h100_mig")
    assert len(nvml.open_samples) == 4
    monkeypatch.setattr(nvml_source, "REFRESH_S", 0.0)
    source._refresh_at = 0.0
    kept = [id(device) for device in source._devices]
    source.read()
    assert [id(device) for device in source._devices] == kept  # nothing changed: counters go on
    nvml.gpus[0]["slices"][2] = None
    samples = list(source.read())
    assert [s.device for s in samples] == ["MIG-44444444-aaaa-bbbb-cccc-000000000001"]
    assert len(nvml.open_samples) == 2
    source.close()
    assert nvml.open_samples == set()
    assert nvml.calls["nvmlInit"] == 1


@pytest.mark.parametrize(
    ("error", "state", "counts_processor"),
    [
        ("NVML_ERROR_LIBRARY_NOT_FOUND", "absent", True),
        ("NVML_ERROR_DRIVER_NOT_LOADED", "absent", True),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "error", False),
    ],
)
def test_the_processor_is_a_device_only_where_there_is_no_accelerator(
    error: str, state: str, counts_processor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, source = source_of("t4", init_error=error)
    devices = HostDevices(accelerators=source)
    assert devices.states()[0].state == state
    assert ([d.kind for d in devices.devices()] == ["cpu"]) is counts_processor
    assert bool(devices.read()) is counts_processor
    nvml.init_error = None  # the driver was loaded since
    source._refresh_at = 0.0
    assert [s.device for s in devices.read()] == ["GPU-22222222-aaaa-bbbb-cccc-000000000001"]
    assert [d.kind for d in devices.devices()] == ["gpu"]


def test_this_host_says_what_nvml_sees_without_raising() -> None:
    source = NvmlSource()
    assert source.state().state in ("ok", "absent", "error")
    assert source.state().detail
    assert len(list(source.read())) == len(source.devices())
    source.close()
