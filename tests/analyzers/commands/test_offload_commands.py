"""`tightship offload`: files in, tables, plans and single lines out."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from tightship_analyzers.commands.offload import offload
from tightship_analyzers.offload_planner.disk import CannotUse, file_system_of, open_disk
from tightship_analyzers.offload_planner.measured import CannotProfile, measure_command, profile_of
from tightship_analyzers.offload_planner.profile import (
    LayerCost,
    Origin,
    Profile,
    RestCost,
    read_profile,
    write_profile,
)
from tightship_offload.errors import PlanError
from tightship_offload.plan.file import read_plan
from tightship_offload.plan.model import HardwareSpec, ModelSpec
from tightship_platform.errors import Invalid, TightshipError
from tightship_platform.units import parse_bytes

MIB = 2**20
HARDWARE = HardwareSpec(
    device="NVIDIA H200",
    device_bytes=2**30,
    host_bytes=2**34,
    cores=16,
    h2d_bytes_per_s=5e9,
    d2h_bytes_per_s=5e9,
    h2d_duplex_bytes_per_s=4e9,
    d2h_duplex_bytes_per_s=4e9,
    adam_params_per_s={1: 4e8, 16: 2e9},
    device_adam_params_per_s=5e10,
)
LAYER = LayerCost(
    forward_ns=20_000_000,
    backward_ns=40_000_000,
    parameters=10_000_000,
    trainable=10_000_000,
    activation_bytes=20 * MIB,
    input_bytes=2 * MIB,
)
PROFILE = Profile(
    model=ModelSpec(name="GPT", block="Block", layer_parameters=(10_000_000,) * 8, rest_parameters=1_000_000),
    layers=(LAYER,) * 8,
    rest=RestCost(after_forward_ns=10**7, parameters=10**6, trainable=10**6, activation_bytes=30 * MIB),
    batch=8,
    tokens=4096,
    origin=Origin.MEASURED,
    steps=5,
    clips=True,
    clip_norm=1.0,
    hardware=HARDWARE,
)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    write_profile(PROFILE, tmp_path / "profile.yaml")
    return tmp_path / "profile.yaml"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(offload, [str(one) for one in arguments], catch_exceptions=False)


def refused(*arguments: object) -> str:
    with pytest.raises(TightshipError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_profile_survives_its_file(profile: Path) -> None:
    assert read_profile(profile) == PROFILE


def test_plan_writes_a_plan_with_its_reasons(profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    shown = call(
        "plan", profile, "-o", path, "--device-memory", "600MiB", "--hardware", profile, "--pinned-budget", "8GiB"
    )
    plan = read_plan(path)
    assert plan.moving and plan.prediction is not None
    assert plan.prediction.device_bytes <= 600 * MIB
    assert plan.loop.clip_norm == 1.0
    assert plan.hardware == HARDWARE
    for word in ("recommended", "fastest", "smallest", "most headroom", "of the speed without offload", "Faster: "):
        assert word in shown.output
    assert path.read_text().startswith("# GPT: a step of ")
    explained = call("explain", path).output
    assert f"{len(plan.moving)} of 8 layers of GPT take turns in {plan.window.slots} slots" in explained
    assert "Updates begin with optimizer.step()" in explained

    simulated = json.loads(call("simulate", profile, "--plan", path, "--json").stdout)
    assert simulated["step_ns"]["value"] == plan.prediction.step_ns.value
    table = call("simulate", profile, "--plan", path).output
    assert "RESOURCE" in table and "compute" in table and "DEVICE WAITS FOR" in table


def test_times_of_one_device_are_not_those_of_another(profile: Path, tmp_path: Path) -> None:
    path, here = tmp_path / "plan.yaml", tmp_path / "cpu.yaml"
    write_profile(replace(PROFILE, hardware=replace(HARDWARE, device="cpu")), here)
    said = refused("plan", here, "-o", path, "--hardware", profile)
    assert said.startswith(
        "The times were recorded on 'cpu', and how long layers take on 'NVIDIA H200' does not follow"
    )
    said = refused("plan", profile, "-o", path, "--hardware", here)
    assert said.startswith("The times were recorded on 'NVIDIA H200'")
    assert not path.exists()
    slower = tmp_path / "a100.yaml"
    write_profile(replace(PROFILE, hardware=replace(HARDWARE, device="NVIDIA A100-SXM4-80GB")), slower)
    times = []
    for machine in (profile, slower):
        call("plan", profile, "-o", path, "--slots", 4, "--resident", "", "--hardware", machine)
        prediction = read_plan(path).prediction
        assert prediction is not None
        times.append(prediction.step_ns.value)
    assert times[1] > 1.5 * times[0]


def test_plan_in_json_lists_alternatives(profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    answer = json.loads(
        call("plan", profile, "-o", path, "--device-memory", "500MiB", "--hardware", profile, "--json").stdout
    )
    options = answer["alternatives"]
    assert list(answer) == ["plan", "alternatives", "simulated"]
    keys = "step_ns share_frac slots resident gpu_streamed recompute micro_batches device_bytes host_bytes pinned_bytes"
    assert all(list(option) == [*keys.split(), "bottleneck"] for option in options.values())
    assert options["fastest"]["step_ns"] <= options["recommended"]["step_ns"]
    assert options["smallest"]["device_bytes"] <= options["recommended"]["device_bytes"] <= 500 * MIB
    assert answer["plan"]["version"] == 1


def test_threads_of_updates_are_in_the_plan_and_no_more_than_cores(profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    call("plan", profile, "-o", path, "--device-memory", "500MiB", "--hardware", profile, "--threads", "1")
    assert read_plan(path).optimizer.threads == 1
    path.unlink()
    said = refused("plan", profile, "-o", path, "--device-memory", "500MiB", "--hardware", profile, "--threads", "999")
    assert said.startswith(f"optimizer.threads is 999 and the machine has {HARDWARE.cores} cores; give fewer")
    assert not path.exists()


def test_a_loop_that_cannot_stay_as_it_is_is_named(profile: Path, tmp_path: Path) -> None:
    shown = call(
        "plan", profile, "-o", tmp_path / "plan.yaml", "--device-memory", "310MiB", "--hardware", profile
    ).output
    assert "Change the loop first: " in shown
    assert "Change the loop first: " in (tmp_path / "plan.yaml").read_text()


def test_refusals_are_one_line(profile: Path, tmp_path: Path) -> None:
    assert "is not there; write one with `tightship offload measure`" in refused("plan", tmp_path / "no.yaml")
    assert "give" in refused("plan", profile, "--device-memory", "1MiB", "--hardware", profile)
    assert "layers from 0 to 7" in refused("plan", profile, "--resident", "3-8", "--hardware", profile)
    assert "layers from 0 to 7" in refused("plan", profile, "--resident", "0;rm -rf /", "--hardware", profile)
    assert "Size is '8XB'" in refused("plan", profile, "--device-memory", "8XB")
    assert "is not there" in refused("run", tmp_path / "no.yaml", "--", "true")
    assert "is not there" in refused("explain", tmp_path / "no.yaml")
    (tmp_path / "bad.yaml").write_text(
        "version: 1\nmodel: {name: x, layer_parameters: [1]}\nlayers: []\norigin: rumor\n"
    )
    assert "profile.origin is 'rumor'; expected one of measured" in refused("plan", tmp_path / "bad.yaml")
    other = tmp_path / "other.yaml"
    other.write_text("version: 1\nmodel: {name: x, layer_parameters: [1, 1]}\nwindow: {slots: 2}\n")
    assert "the plan is for 2 layers, this model has 8" in refused("simulate", profile, "--plan", other)


def test_more_slots_than_layers_are_refused(profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    said = refused("plan", profile, "-o", path, "--slots", 99, "--hardware", profile)
    assert said == "--slots is 99; expected 1 to 8, the number of layers"
    assert not path.exists()
    call("plan", profile, "-o", path, "--slots", 8, "--resident", "", "--hardware", profile)
    assert read_plan(path).window.slots == 8
    path.write_text(path.read_text().replace("slots: 8", "slots: 99"))
    said = f"Plan '{path}': window.slots is 99 and the model has 8 layers; expected 1 to 8"
    assert refused("simulate", profile, "--plan", path) == said
    assert refused("explain", path) == said


def test_a_plan_is_no_profile_and_a_profile_no_plan(profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    call("plan", profile, "-o", path, "--hardware", profile)
    said = f"Profile '{path}': it is a plan, not a profile; give the file that `tightship offload measure` wrote"
    assert refused("plan", path) == said
    assert refused("plan", profile, "--hardware", path) == said
    assert refused("simulate", path, "--plan", path) == said
    said = f"Plan '{profile}': it is a profile, not a plan; give the file that `tightship offload plan` wrote"
    assert refused("simulate", profile, "--plan", profile) == said
    assert refused("explain", profile) == said
    assert refused("run", profile, "--", "true") == said


@pytest.mark.parametrize("option", ["--device-memory", "--host-memory", "--pinned-budget"])
def test_a_size_without_its_unit_is_refused(profile: Path, option: str) -> None:
    said = refused("plan", profile, option, "10", "--hardware", profile)
    assert said == "Size is '10'; expected at least 1MiB; give a unit, such as 8GiB"


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"model": {"name": "x", "layer_parameters": [1]}},
        {"model": {"name": "x", "layer_parameters": [1]}, "trainable": [1], "forward_ns": ["1; rm"]},
        {"model": []},
    ],
)
def test_a_record_that_is_none_is_refused_in_one_line(record: dict[str, object]) -> None:
    with pytest.raises(PlanError) as caught:
        profile_of(record, HARDWARE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("4096b", 4096), ("8GiB", 2**33), ("8G", 2**33), ("80GB", 80 * 10**9), ("1.5 MiB", 3 * 2**19)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "nan", "8 GiB GiB", "９"])
def test_texts_that_are_no_sizes(text: str) -> None:
    with pytest.raises(Invalid):
        parse_bytes(text)


# ---- memory that is short --------------------------------------------------------------------------------------------


def in_files(profile: Path, *more: object) -> tuple[object, ...]:
    return ("plan", profile, "--device-memory", "500MiB", "--host-memory", "700MiB", "--hardware", profile, *more)


def test_layers_are_in_files_where_host_memory_does_not_hold_them(profile: Path, tmp_path: Path) -> None:
    path, folder = tmp_path / "plan.yaml", tmp_path / "layers"
    assert "layers in files (--nvme FOLDER), or an optimizer with less state" in refused(*in_files(profile))
    shown = call(*in_files(profile, "--nvme", folder, "-o", path))
    plan = read_plan(path)
    assert plan.nvme is not None and plan.prediction is not None and plan.hardware is not None
    assert (plan.nvme.folder, plan.nvme.layers, plan.nvme.weights) == (str(folder), plan.moving, True)
    assert plan.prediction.host_bytes <= 700 * MIB
    rest = PROFILE.rest.parameters + 10_000_000 * len(plan.window.resident)
    # Weights and two moments: of layers with their log; of what does not move twice, and once more while it is written.
    assert plan.prediction.nvme_bytes == 12 * (2 * 10_000_000 * len(plan.moving) + 3 * rest)
    assert plan.hardware.nvme_read_bytes_per_s and plan.hardware.nvme_write_bytes_per_s
    least_s = plan.prediction.nvme_bytes / plan.hardware.nvme_write_bytes_per_s
    assert plan.prediction.step_ns.value >= least_s * 1e9
    assert f"are in files in {folder}, 1.8 GiB with their undo log and what does not move" in shown.output
    assert list(folder.iterdir()) == []

    call("plan", profile, "--device-memory", "500MiB", "--hardware", profile, "--nvme", folder, "-o", path)
    assert read_plan(path).nvme is None  # host memory holds them: that is faster


def test_a_folder_for_layers_that_is_none(profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    said = refused(*in_files(profile, "--nvme", tmp_path / "file" / "layers"))
    assert said.endswith("cannot be used: Not a directory; give another folder")
    real = os.statvfs

    def nearly_full(path: Path) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=1500 * MIB, f_frsize=1 if real(path) else 0)

    monkeypatch.setattr(os, "statvfs", nearly_full)
    said = refused(*in_files(profile, "--nvme", tmp_path, "--resident", ""))
    assert f"of disk space, and {tmp_path} allows 1.5 GiB" in said and "another folder for --nvme" in said


def test_a_folder_in_memory_spares_none(tmp_path: Path) -> None:
    mounts = tmp_path / "proc" / "self" / "mountinfo"
    mounts.parent.mkdir(parents=True)
    place = str(tmp_path / "in memory").replace(" ", "\\040")
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 / {place} rw shared:1 - tmpfs tmpfs rw\nodd\n")
    with pytest.raises(CannotUse, match="is on a tmpfs, which is in memory; give a folder on a disk"):
        open_disk(tmp_path / "in memory" / "layers", tmp_path)
    assert file_system_of(tmp_path / "in memory2", tmp_path) == "ext4"
    assert file_system_of(tmp_path, tmp_path / "nowhere") == ""


def test_what_is_on_a_device_that_host_memory_plays_is_in_host_memory(profile: Path, tmp_path: Path) -> None:
    path, here = tmp_path / "plan.yaml", tmp_path / "cpu.yaml"
    write_profile(replace(PROFILE, process_bytes=100 * MIB, hardware=replace(HARDWARE, device="cpu")), here)
    call("plan", here, "-o", path, "--hardware", here, "--slots", 2, "--resident", "")
    plan = read_plan(path)
    assert plan.prediction is not None
    together = plan.prediction.device_bytes + plan.prediction.host_bytes
    assert plan.prediction.host_bytes == 16 * 80_000_000 + 100 * MIB
    less = ("plan", here, "--hardware", here, "--slots", 2, "--resident", "", "--recompute", "none")
    less = (*less, "--micro-batches", 1, "--host-memory", f"{together - 1}B")
    assert "1 B more host memory" in refused(*less)
    assert "Host memory plays the device: together" in call("explain", path).output


COMMAND = "import os, pathlib, sys\nrecord = pathlib.Path(os.environ['TIGHTSHIP_OFFLOAD_MEASURE'])\n"
SHORT = COMMAND + "(record.parent / 'short-of-memory').touch()\nsys.exit(os.environ['TIGHTSHIP_OFFLOAD_SHORT'] + '1')"


def test_a_command_that_dies_for_lack_of_memory_is_measured_once_more(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CannotProfile, match="ended with exit code 1 before 5 steps were timed"):
        measure_command([sys.executable, "-c", SHORT], steps=5, hardware=HARDWARE)
    said = capfd.readouterr().err.splitlines()
    assert said == ["01", "tightship: out of memory; measuring once more, with layers that share memory", "11"]


def test_the_commands_that_follow_are_whole(profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "a plan.yaml"
    write_profile(replace(PROFILE, command=("python", "my train.py", "--lr", "1")), profile)
    shown = call("plan", profile, "-o", path, "--hardware", profile)
    assert f"Next: tightship offload run '{path}' -- python 'my train.py' --lr 1" in shown.output
