"""Devices whose name is missing, generic or that of a variant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightship_analyzers.hardware import Reported, find, recognise

GIB = 2**30
MI300X = Reported(name="", units=304, memory_bytes=206141652992, major=9, minor=4, warp=64)
"""As a driver without names reported it (vLLM on MI300X)."""


def of(name: str, units: int | None = None, gib: float | None = None, **more: int) -> Reported:
    return Reported(name=name, units=units, memory_bytes=None if gib is None else int(gib * GIB), **more)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (MI300X, "mi300x"),
        (of("AMD Radeon Graphics", 304, 255.9, major=9, minor=4, warp=64), "mi325x"),
        (of("AMD Radeon Graphics", 110, 63.9, major=9, minor=0, warp=64), "mi250x"),
        (of("gfx942:sramecc+:xnack-", 304, 191.9), "mi300x"),
        (of("NVIDIA Graphics Device", 108, 79.1, major=8, minor=0, warp=32), "a100"),
        (of("unknown device", 132, 93.5, major=9, minor=0, warp=32), "h100-nvl"),
        (of("Tesla V100-DGXS-32GB", 80, 31.7, major=7, minor=0, warp=32), "v100"),
        (of("Tesla V100-SXM3-32GB"), "v100"),
        (of("NVIDIA A100-SXM4-80GB-LC", 108, 79.1), "a100"),
        (of("AMD Instinct MI250X/MI250", 104, 63.9, warp=64), "mi250"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name or "nameless",
)
def test_what_names_a_device_without_its_name(reported: Reported, expected: str) -> None:
    found = recognise(reported)
    assert found is not None and found.device.id == expected and not found.by_name


def test_a_listed_name_is_the_device_itself() -> None:
    found = recognise(of("NVIDIA H100 80GB HBM3", 132, 79.2, major=9, minor=0, warp=32))
    assert found is not None and found.by_name and found.device is find("NVIDIA H100 80GB HBM3")


def test_several_candidates_count_with_the_least_rates() -> None:
    found = recognise(of("Tesla V100-DGXS-32GB"))
    assert found is not None
    every = [find(name) for name in ("Tesla V100-PCIE-16GB", "Tesla V100-SXM2-32GB")]
    pcie, sxm = (device for device in every if device is not None)
    assert found.device.flops("fp16") == pcie.flops("fp16") < (sxm.flops("fp16") or 0)
    assert found.device.link_bytes_per_s.keys() == {"pcie"}, "NVLink is not what all of them have"
    assert found.device.tdp_w is None and found.device.memory_bytes == pcie.memory_bytes
    assert "V100" in found.how and "v100-pcie-16gb" in found.how

    two = recognise(of("AMD Radeon Graphics", 104, 63.98, major=9, minor=0, warp=64))
    assert two is not None and two.device.id == "mi210 or mi250"
    assert "104 compute units, 64 GiB, warps of 64" in two.how


@pytest.mark.parametrize(
    "reported",
    [
        of("", 304),
        of("", None, 191.9, major=9, minor=4, warp=64),
        of("", 304, 191.9, major=9, minor=4, warp=32),
        of("", 304, 191.9, major=9, minor=5, warp=64),
        of("", 38, 24, major=9, minor=4, warp=64),
        of("gfx90a", 304, 191.9),
        of("AMD Instinct MI300X", 38, 24, major=9, minor=4, warp=64),
        of("NVIDIA H100 80GB HBM3", 16, 10, major=9, minor=0, warp=32),
        of("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 108, 79.1),
        of("GRID A100-10C", 108, 79.1),
        of("Tesla V100-DGXS-32GB", 40, 31.7),
        of("Tesla V100-DGXS-32GB", 80, 7.9),
        of("NVIDIA H100 NVL-next", 132, 93.5, major=10, minor=0, warp=32),
        of("Tesla V100S-PCIE-32GB", 80, 31.7),
        of("ARTEMIS"),
    ],
    ids=lambda one: f"{one.name or 'nameless'}-{one.units}",
)
def test_what_is_ambiguous_or_a_part_is_none(reported: Reported) -> None:
    assert recognise(reported) is None


def test_ones_own_devices_have_variants_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[device]]\nid = "mine"\nnames = ["Mine 9000"]\nfamily = "9000"\nvendor = "Us"\nunits = 8\nmemory_gib = 4\n'
        'memory_gb_per_s = 10\nsource = "measured"\n'
    )
    found = recognise(of("Mine 9000 OEM", 8, 4), [path])
    assert found is not None and found.device.id == "mine" and recognise(of("Mine 9000 OEM", 8, 4)) is None
