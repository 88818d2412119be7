from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import psutil
import pytest

from tightship_collectors.sources.cpu import CpuSource
from tightship_collectors.sources.host import HostSource
from tightship_collectors.sources.names import clean_name, processor_name, slice_name

TREE = Path(__file__).parents[2] / "data" / "proc_host"
SECOND = 1_000_000_000


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recorded /proc and /sys that psutil reads; tests change its files to let time pass."""
    tree = tmp_path / "host"
    shutil.copytree(TREE, tree)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tree / "proc"))
    return tree


def clock() -> itertools.count[int]:
    return itertools.count(SECOND, SECOND)


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_the_processor_as_a_device(host: Path) -> None:
    ticks = clock()
    source = CpuSource(clock=lambda: next(ticks), powercap=host / "powercap", cpuinfo=host / "proc/cpuinfo")
    (device,) = source.devices()
    assert (device.uuid, device.kind, device.name) == ("cpu", "cpu", "Intel Xeon Platinum 8480C")
    assert device.memory_bytes == 32_768_000 * 1024
    (first,) = source.read()
    assert (first.util_frac, first.power_w) == (None, None)  # differences need two readings
    assert first.memory_used_bytes == (32_768_000 - 24_576_000) * 1024
    # In one second of 4 cores: 100 user, 20 of it for guests, 50 system, 30 stolen, 10 waiting for a disk, 210 idle.
    edit(host / "proc/stat", ("cpu  1000 0 500 80000 200 0 0 0 0 0", "cpu  1100 0 550 80210 210 0 0 30 20 0"))
    edit(host / "powercap/intel-rapl:0/energy_uj", ("1000000", "43000000"))
    (second,) = source.read()
    assert second.util_frac == pytest.approx((100 + 50) / 400)
    assert second.power_w == pytest.approx(42.0)
    assert (second.sm_active_frac, second.pcie_rx_bytes_per_s, second.clock_hz) == (None, None, None)
    assert source.state().state == "ok"
    assert "package power" in source.state().detail
    edit(host / "powercap/intel-rapl:0/energy_uj", ("43000000", "7"))
    (wrapped,) = source.read()
    assert wrapped.power_w is None


def test_what_cannot_be_read_is_an_error_and_no_sample(host: Path) -> None:
    source = CpuSource(powercap=host / "nowhere", cpuinfo=host / "nowhere")
    sampler = HostSource(sysfs=host / "sys")
    (host / "proc/meminfo").unlink()
    assert list(source.read()) == []
    assert list(sampler.read()) == []
    assert (source.state().state, sampler.state().state) == ("error", "error")
    shutil.copy(TREE / "proc/meminfo", host / "proc/meminfo")
    assert len(list(source.read())) == 1
    assert source.state().state == "ok"


def test_host_rates_count_hardware_once(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("block/nvme0n1", "block/dm-0", "class/net/eth0", "class/net/br0"):
        (host / "sys" / name).mkdir(parents=True)
    for name in ("block/nvme0n1/device", "class/net/eth0/device"):
        (host / "sys" / name).mkdir()
    ticks = clock()
    source = HostSource(clock=lambda: next(ticks), sysfs=host / "sys")

    def counters(written: int) -> None:
        disk = psutil._ntuples.sdiskio if hasattr(psutil, "_ntuples") else psutil._pslinux.sdiskio
        net = psutil._ntuples.snetio if hasattr(psutil, "_ntuples") else psutil._common.snetio
        disks = {n: disk(1, 1, written // 2, written, 1, 1, 1, 1, 1) for n in ("nvme0n1", "dm-0")}
        cards = {n: net(written, written * 2, 1, 1, 0, 0, 0, 0) for n in ("lo", "eth0", "br0")}
        monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: disks)
        monkeypatch.setattr(psutil, "net_io_counters", lambda **_: cards)

    counters(1000)
    (first,) = source.read()
    assert first.disk_write_bytes_per_s is None
    counters(5000)
    (second,) = source.read()
    assert (second.disk_read_bytes_per_s, second.disk_write_bytes_per_s) == (2000, 4000)
    assert (second.net_tx_bytes_per_s, second.net_rx_bytes_per_s) == (4000, 8000)
    assert second.memory_used_bytes == (32_768_000 - 24_576_000) * 1024


def test_this_host_can_be_read() -> None:
    source = HostSource()
    list(source.read())
    sum(range(2_000_000))
    (sample,) = source.read()
    assert sample.cpu_frac is not None
    assert 0 <= sample.cpu_frac <= 1
    assert sample.memory_used_bytes is not None
    assert 0 < sample.memory_used_bytes < psutil.virtual_memory().total
    assert source.state().state == "ok"


def test_names_are_fit_to_be_shown() -> None:
    assert clean_name("a\nb\x00\x1b[31m  c\u202e", otherwise="x") == "a b [31m c"
    assert clean_name(b"\xff\xfe", otherwise="x").isprintable()
    assert clean_name("\n\t", otherwise="GPU") == "GPU"
    assert len(clean_name("n" * 1000, otherwise="x")) == 200
    assert slice_name("H100", "", 10 * 2**30) == "H100 MIG 10gb"
    assert processor_name(Path("/nowhere"))
