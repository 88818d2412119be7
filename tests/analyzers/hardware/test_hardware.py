"""Device descriptors: their figures against the architectures' own arithmetic and against real devices' reports."""

from __future__ import annotations

import os
import pickle
import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from reference_data import trace_paths

from tightship_analyzers import hardware, trace
from tightship_analyzers.hardware import HardwareError
from tightship_platform.settings import load_settings

# Operations per clock and unit, dense, multiply-add as two; from the architecture papers, not from the data sheets.
VECTOR = {
    "Volta": {"fp64": 64, "fp32": 128, "fp16": 256},
    "Turing": {"fp64": 4, "fp32": 128, "fp16": 256},
    "Ada": {"fp64": 4, "fp32": 256, "fp16": 256, "bf16": 256},
    "Ampere": {"fp64": 64, "fp32": 128, "fp16": 512, "bf16": 256},
    "Hopper": {"fp64": 128, "fp32": 256, "fp16": 512, "bf16": 512},
    "Blackwell": {"fp64": 128, "fp32": 256},
    "CDNA 2": {"fp64": 128, "fp32": 128},
    "CDNA 3": {"fp64": 128, "fp32": 256},
}
MATRIX = {
    "Volta": {"fp16": 1024},
    "Turing": {"fp16": 1024, "int8": 2048},
    "Ada": {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "Ampere": {"fp64": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "Hopper": {"fp64": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
    "Blackwell": {"fp64": 128, "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 16384, "fp4": 32768},
    "CDNA 2": {"fp64": 256, "fp32": 256, "fp16": 1024, "bf16": 1024, "int8": 1024},
    "CDNA 3": {"fp64": 256, "fp32": 256, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096, "int8": 4096},
}
EXCEPTIONS = {
    ("rtx-2080-ti", "matrix", "fp16"): 512,  # GeForce boards accumulate in fp32 at half the rate
    ("h800-sxm", "vector", "fp64"): None,  # cut down for export
    ("h800-sxm", "matrix", "fp64"): None,
}
LOWER_CLOCK_FRAC = 0.14
"""Matrix units of Hopper and Blackwell run up to this much below the boost clock."""

DEVICES = hardware.devices()
OWN = """
[[device]]
id = "mine"
names = ["ARTEMIS", "My  Accelerator"]
vendor = "Us"
units = 8
memory_gib = 0.5
memory_gb_per_s = 10
source = "measured"
"""


def test_the_devices_that_are_promised() -> None:
    known = {device.id for device in DEVICES}
    assert {"t4", "l4", "rtx-2080-ti", "h100-sxm", "h100-pcie", "h200-sxm", "h800-sxm", "b200"} <= known
    assert {"a100-sxm4-40gb", "a100-sxm4-80gb", "a100-pcie-40gb", "a100-pcie-80gb"} <= known
    assert {"v100-sxm2-16gb", "v100-sxm2-32gb", "mi210", "mi250", "mi250x", "mi300x", "mi325x"} <= known


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.id)
def test_rates_are_those_of_the_architecture(device: hardware.Device) -> None:
    """A rate with structured sparsity, or of another board, would be off by far more than the clocks are."""
    assert device.clock_hz is not None
    for kind, rates, expected in (
        ("vector", device.vector_flops, VECTOR[device.architecture]),
        ("matrix", device.matrix_flops, MATRIX[device.architecture]),
    ):
        assert rates.keys() == expected.keys()
        for dtype, rate in rates.items():
            per_clock = EXCEPTIONS.get((device.id, kind, dtype), expected[dtype])
            if per_clock is not None:
                peak = device.units * device.clock_hz * per_clock
                assert -LOWER_CLOCK_FRAC < rate / peak - 1 < 0.04, (kind, dtype, rate, peak)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.id)
def test_every_descriptor_is_whole(device: hardware.Device) -> None:
    assert device.source.startswith("https://") and device.capability and device.vendor in ("NVIDIA", "AMD")
    assert 100e9 < device.memory_bytes_per_s < 10e12 and 10 * 2**30 < device.memory_bytes < 300 * 2**30
    balance = (device.flops("fp16") or 0) / device.memory_bytes_per_s
    assert 50 < balance < 450, "FLOP per byte of memory traffic"
    for link, rate in device.link_bytes_per_s.items():
        assert (16e9 <= rate <= 64e9) if link == "pcie" else (50e9 <= rate <= 900e9)
    assert device.id == "a100-pg509-200" or (device.tdp_w and "pcie" in device.link_bytes_per_s)
    assert pickle.loads(pickle.dumps(device)) == device and hash(device) == hash(pickle.loads(pickle.dumps(device)))
    with pytest.raises(FrozenInstanceError):
        device.units = 1  # type: ignore[misc]


def test_what_products_reach_is_measured_or_half_of_the_peak() -> None:
    h100, t4 = hardware.find("NVIDIA H100 80GB HBM3"), hardware.find("NVIDIA T4")
    assert h100 is not None and t4 is not None
    assert (h100.reached_flops("bf16"), h100.reached_flops("fp8")) == (794.5e12, 1402.6e12)
    assert h100.reached_flops("fp16") == pytest.approx(989.4e12 * 1402.6 / 1978.9), "the smaller of two known shares"
    assert (t4.reached_flops("fp16"), t4.reached_flops("bf16")) == (32.5e12, None)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.id)
def test_no_product_is_faster_than_the_peak(device: hardware.Device) -> None:
    for dtype, rate in device.product_flops.items():
        assert 0.5 <= rate / device.matrix_flops[dtype] <= 1


def test_lookup_by_reported_names() -> None:
    for device in DEVICES:
        for name in device.names:
            assert hardware.find(name) is device
    h100 = hardware.find("  nvidia h100  80GB HBM3 ")
    assert h100 is not None and h100.id == "h100-sxm"
    rates = (h100.flops("bf16"), h100.flops("fp32"), h100.flops("fp16", matrix=False))
    assert rates == pytest.approx((989.4e12, 66.9e12, 133.8e12))
    assert h100.flops("fp4") is None
    mi300x = hardware.find("AMD Instinct MI300X")
    assert mi300x is not None and mi300x.flops("fp32", matrix=False) == mi300x.flops("fp32") == 163.4e12


@pytest.mark.parametrize(
    "name",
    [
        *("", "cpu", "unknown device", "AMD Radeon Graphics", "AMD Instinct MI300A", "Tesla V100S-PCIE-32GB"),
        *("NVIDIA H100", "NVIDIA GH200 480GB", "NVIDIA GB200", "H" * 10**5),
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    ],
    ids=lambda name: name[:40],
)
def test_what_is_not_known_is_not_guessed(name: str) -> None:
    assert hardware.find(name) is None


def test_a_part_of_a_device_is_not_the_device() -> None:
    whole = {"units": 304, "memory_bytes": 206141652992}
    assert hardware.find("AMD Instinct MI300X", **whole) is not None
    assert hardware.find("AMD Instinct MI300X", units=38) is None
    assert hardware.find("AMD Instinct MI300X", memory_bytes=whole["memory_bytes"] // 8) is None
    assert hardware.find("Tesla T4", units=40, memory_bytes=15843721216) is not None
    assert hardware.find("NVIDIA H200", units=132, memory_bytes=150109880320) is not None


def test_devices_of_ones_own(tmp_path: Path) -> None:
    named = tmp_path / "more.toml"
    named.write_text(OWN)
    mine = hardware.find("artemis", files=[named])
    assert mine is not None and mine is not hardware.find("artemis")
    assert (mine.memory_bytes, mine.memory_bytes_per_s, mine.tdp_w, mine.flops("fp32")) == (2**29, 10e9, None, None)
    assert hardware.find("My Accelerator", files=[named]) == mine and hardware.find("artemis") is None

    home = load_settings().home
    home.mkdir(parents=True)
    (home / "hardware.toml").write_text(OWN.replace('"ARTEMIS"', '"Tesla T4"') + "matrix_tflops = { fp16 = 1 }\n")
    mine = hardware.find("Tesla T4")
    assert mine is not None and (mine.id, mine.flops("fp16")) == ("mine", 1e12), "one's own entry comes first"
    t4 = hardware.find("NVIDIA T4")
    assert t4 is not None and t4.id == "t4"
    assert len(hardware.devices()) == len(DEVICES) + 1


def wrong(tmp_path: Path, text: str) -> str:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(HardwareError) as caught:
        hardware.read_devices(path)
    message = str(caught.value)
    assert "\n" not in message and message.isprintable() and str(path) in message and len(message) < 1500
    return message


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("units = 8", "units = 0", "units is 0; expected a whole number from 1 to 100000"),
        ("units = 8", "units = 8.5", "units is 8.5; expected a whole number"),
        ("units = 8", "units = true", "units is True; expected a whole number"),
        ("units = 8", "units = '8'", "units is '8'; expected a whole number"),
        ("units = 8", "", "has no units"),
        ("units = 8", "units = 8\ncores = 4", "has the entry 'cores'; known: id, "),
        ("memory_gib = 0.5", "memory_gib = nan", "memory_gib is nan; expected a number"),
        ("memory_gib = 0.5", "memory_gib = inf", "memory_gib is inf; expected a number"),
        ("memory_gib = 0.5", "memory_gib = 1979-05-27", "memory_gib is datetime.date"),
        ("memory_gb_per_s = 10", "memory_gb_per_s = -1", "memory_gb_per_s is -1; expected a number from 0.001"),
        ('source = "measured"', 'source = ""', "source is ''; expected a line of text"),
        ('vendor = "Us"', 'vendor = "a\\u001b[31m"', "vendor is .*; expected a line of text"),
        ('["ARTEMIS", "My  Accelerator"]', "[]", r"names is \[\]; expected a list of names"),
        ('"ARTEMIS"', "7", "names is 7; expected a line of text"),
        ('"ARTEMIS"', '"my accelerator"', "gives 'my accelerator' twice"),
        ("units = 8", "units = 8\nmatrix_tflops = { fp17 = 1 }", "has the entry 'fp17'; known: fp64, fp32"),
        ("units = 8", "units = 8\nmatrix_tflops = { fp16 = 0 }", r"matrix_tflops.fp16 is 0; expected a number"),
        ("units = 8", "units = 8\nlinks_gb_per_s = 5", "links_gb_per_s is 5; expected a table"),
        ("[[device]]", "[device]", r"may hold \[\[device\]\] entries only"),
        ("[[device]]", "colour = 1\n[[device]]", r"may hold \[\[device\]\] entries only"),
        ("[[device]]", "[[device", "is not TOML"),
        ("units = 8", "units = " + "[" * 5000, "is not TOML"),
    ],
)
def test_a_wrong_entry_is_one_line(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in OWN
    assert re.search(what, wrong(tmp_path, OWN.replace(old, new)))


def test_files_that_are_no_list_of_devices(tmp_path: Path) -> None:
    assert "gives 'mine' twice" in wrong(tmp_path, OWN + OWN.replace("ARTEMIS", "B").replace("My", "Your"))
    path = tmp_path / "file.toml"
    cases: list[tuple[bytes | None, str]] = [(None, "No file of devices"), (b"\xff\xfe", "not UTF-8")]
    for content, what in [*cases, (b"#" * (2**20 + 1), "more than 1048576 bytes")]:
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(HardwareError, match=what):
            hardware.read_devices(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HardwareError, match="No file of devices"):
        hardware.read_devices(tmp_path / "pipe")


REPORTED = {
    "": None,  # some drivers give no name
    "AMD Radeon Graphics": None,
    "ARTEMIS": None,
    "NVIDIA A100-PG509-200": "a100-pg509-200",
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb",
    "Tesla V100-SXM2-16GB": "v100-sxm2-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "NVIDIA GeForce RTX 2080 Ti": "rtx-2080-ti",
    "NVIDIA B200": "b200",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI300X VF": "mi300x",
}


@pytest.mark.reference
def test_devices_of_the_reference_traces() -> None:
    """Units, memory and capability as real devices reported them."""
    seen = set()
    for path in trace_paths():
        for reported in trace.open(path).properties.get("deviceProperties") or ():
            properties: dict[str, Any] = reported
            name = properties["name"]
            seen.add(name)
            found = hardware.find(name, units=properties.get("numSms"), memory_bytes=properties.get("totalGlobalMem"))
            assert (found.id if found else None) == REPORTED[name], path
            if found and found.vendor == "NVIDIA":
                assert found.capability == f"{properties['computeMajor']}.{properties['computeMinor']}"
    assert seen == set(REPORTED)


def test_the_documented_entry_is_acceptable(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text()
    example = re.search(r"```toml\n(.*?)```", page, re.S)
    assert example is not None
    (tmp_path / "devices.toml").write_text(example[1])
    (device,) = hardware.read_devices(tmp_path / "devices.toml")
    assert device.link_bytes_per_s == {"pcie": 32e9} and device.flops("bf16") == 190e12
