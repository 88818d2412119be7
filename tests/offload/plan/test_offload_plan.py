"""Plans: what they may hold, how they are written, and whom they refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tightship_offload.errors import PlanError
from tightship_offload.plan.capabilities import RUNTIME, Capabilities
from tightship_offload.plan.file import MOST_BYTES, parse_plan, plan_text, read_plan, write_plan
from tightship_offload.plan.model import (
    Bottleneck,
    Clipping,
    Dtype,
    HardwareSpec,
    Interval,
    Loop,
    ModelSpec,
    Nvme,
    OptimizerPlan,
    Placement,
    Plan,
    Precision,
    Prediction,
    UpdateOrder,
    UpdateStart,
    Window,
    fingerprint,
    hardware_differences,
    model_differences,
)

HARDWARE = HardwareSpec(
    device="NVIDIA H200",
    device_bytes=139 * 2**30,
    host_bytes=128 * 2**30,
    cores=16,
    h2d_bytes_per_s=55e9,
    d2h_bytes_per_s=54.5e9,
    h2d_duplex_bytes_per_s=45e9,
    d2h_duplex_bytes_per_s=44e9,
    adam_params_per_s={1: 6e8, 16: 4.2e9},
)
MODEL = ModelSpec(name="GPT", block="Block", layers="blocks.*", layer_parameters=(10, 10, 12), rest_parameters=7)


def plan(**changes: Any) -> Plan:
    return Plan(**{"model": MODEL, "window": Window(slots=2, resident=(2,), prefetch=1)} | changes)


def full_plan() -> Plan:
    prediction = Prediction(
        step_ns=Interval(value=2e9, low=1.8e9, high=2.2e9),
        no_offload_step_ns=Interval(value=1.5e9, low=1.4e9, high=1.6e9),
        device_bytes=8 * 2**30,
        host_bytes=10**11,
        pinned_bytes=10**10,
        h2d_bytes=10**9,
        d2h_bytes=10**9,
        bottleneck=Bottleneck.CPU_UPDATE,
        waits_ns={"cpu-update": 10**8},
    )
    return plan(
        optimizer=OptimizerPlan(gpu_resident=(2,), clipping=Clipping.NONE),
        loop=Loop(micro_batches=4, clip_norm=1.0, tokens=16384),
        precision=Precision(weights=Dtype.BF16, master=Dtype.BF16, gradients=Dtype.BF16),
        nvme=Nvme(folder="/data/nvme", layers=(0, 1), weights=True),
        hardware=HARDWARE,
        prediction=prediction,
    )


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    for one in (plan(), full_plan()):
        write_plan(one, tmp_path / "plan.yaml", comment="Why it is so.\n# and more")
        assert read_plan(tmp_path / "plan.yaml") == one
        assert list(tmp_path.iterdir()) == [tmp_path / "plan.yaml"]
        assert (tmp_path / "plan.yaml").read_text().startswith("# Why it is so.\n# # and more\n\nversion: 1\n")


def test_reading_a_plan_imports_no_torch() -> None:
    code = "import sys, tightship_offload.plan.file; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_placements() -> None:
    optimizer = OptimizerPlan(gpu_streamed=(0,), gpu_resident=(2,), threads=16)
    placed = [optimizer.placement(layer) for layer in range(3)]
    assert placed == [Placement.GPU_STREAMED, Placement.CPU, Placement.GPU_RESIDENT]
    assert full_plan().moving == (0, 1)
    assert plan().optimizer.placement(2) is Placement.GPU_RESIDENT, "as the runtime does it, said or not"
    assert Plan.from_mapping(plan().as_mapping(), "plan") == plan()


SOME_IN_FILES = Nvme(folder="/data/nvme", layers=(0,), weights=True)
ALL_IN_FILES = Nvme(folder="/data/nvme", layers=(0, 1), weights=True)
SPECULATIVE = OptimizerPlan(clipping=Clipping.SPECULATIVE)
DURING_BACKWARD = OptimizerPlan(start=UpdateStart.DURING_BACKWARD, clipping=Clipping.NONE)
MASTERS = Precision(weights=Dtype.BF16, master=Dtype.FP32)
MORE_CAPABLE = Capabilities(
    gradients_in_flight=2,
    staging_buffers=2,
    update_orders=("next-use", "as-ready"),
    sets_threads=True,
    streams_updates=True,
    updates_residents_on_cpu=True,
    divides_layers_over_files=True,
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": OptimizerPlan(gpu_streamed=(0,))}, "optimizer.gpu_streamed lists layers, which this runtime"),
        (
            {"optimizer": OptimizerPlan(threads=9999), "hardware": HARDWARE},
            "optimizer.threads is 9999 and the machine has [0-9]+ cores; give fewer",
        ),
        (
            {"window": Window(slots=2, resident=(0, 1)), "optimizer": OptimizerPlan(gpu_resident=(0,))},
            "gpu_resident lacks the resident layer 1, and this runtime updates every resident layer on the device",
        ),
        ({"nvme": SOME_IN_FILES}, "name all layers that move in nvme.layers and set nvme.weights"),
        (
            {"nvme": replace(ALL_IN_FILES, weights=False)},
            "name all layers that move in nvme.layers and set nvme.weight",
        ),
        ({"optimizer": SPECULATIVE, "loop": Loop(clip_norm=1.0)}, "start after-step, which has nothing to roll back"),
        ({"nvme": ALL_IN_FILES, "optimizer": DURING_BACKWARD}, "files do not go together with updates during backward"),
        ({"nvme": ALL_IN_FILES, "precision": MASTERS}, "Layers in files do not go together with fp32 masters yet"),
    ],
)
def test_what_the_runtime_would_ignore_cannot_be_written_nor_read(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        plan(**changes)
    assert "\n" not in str(caught.value)
    data = plan().as_mapping()
    del data["optimizer"]
    written = data | {name: section.as_mapping() for name, section in changes.items()}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(written))
    with pytest.raises(PlanError, match=said):
        read_plan(tmp_path / "plan.yaml")


def test_what_a_runtime_honours_may_be_written() -> None:
    asked = plan()
    # As the file of a later release would have it: this one's check would refuse to make it.
    later = OptimizerPlan(gpu_streamed=(0,), gpu_resident=(2,), threads=16, order=UpdateOrder.AS_READY)
    object.__setattr__(asked, "optimizer", later)
    object.__setattr__(asked, "nvme", SOME_IN_FILES)
    assert asked.refused_by(MORE_CAPABLE) is None
    assert asked.refused_by(RUNTIME) is not None
    object.__setattr__(asked, "optimizer", replace(later, gpu_streamed=()))
    less = replace(MORE_CAPABLE, sets_threads=False)
    assert "start the job with OMP_NUM_THREADS=16" in str(asked.refused_by(less))
    less = replace(MORE_CAPABLE, update_orders=("next-use",))
    assert "order is as-ready, which this runtime does not do yet; expected next-use" in str(asked.refused_by(less))
    assert set(RUNTIME.update_orders) <= {order.value for order in UpdateOrder}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Window(slots=0), "window.slots is 0; expected a whole number from 1 to 10000"),
        (lambda: Window(slots=True), "window.slots is True; expected a whole number"),
        (lambda: Window(slots=2, prefetch=2), "window.prefetch is 2 with 2 slots; expected at most 1"),
        (lambda: Window(slots=2, resident=(3, 1)), "window.resident is a tuple of 2; expected each entry once"),
        (
            lambda: plan(window=Window(slots=2, resident=(3,))),
            "window.resident has layer 3; the model has layers 0 to 2",
        ),
        (lambda: plan(window=Window(slots=1, prefetch=0)), "window.slots is 1 with 3 layers that move"),
        (lambda: plan(optimizer=OptimizerPlan(gpu_resident=(0,))), "has layer 0, which is not in window.resident"),
        (lambda: plan(optimizer=OptimizerPlan(gpu_resident=(2,), gpu_streamed=(2,))), "Layer 2 is both gpu-streamed"),
        (
            lambda: plan(optimizer=OptimizerPlan(start=UpdateStart.DURING_BACKWARD)),
            "during-backward with clipping exact, which must wait",
        ),
        (
            lambda: plan(optimizer=OptimizerPlan(start=UpdateStart.DURING_BACKWARD, clipping=Clipping.SPECULATIVE)),
            "speculative without loop.clip_norm",
        ),
        (lambda: replace(MODEL, layer_parameters=()), "has no layer"),
        (lambda: replace(MODEL, name="a\x1b[31mb"), "model.name is 'a\\x1b[31mb'; expected a line"),
        (lambda: replace(HARDWARE, adam_params_per_s={}), "adam_params_per_s is empty"),
        (lambda: replace(HARDWARE, h2d_bytes_per_s=float("nan")), "hardware.h2d_bytes_per_s is nan"),
        (lambda: replace(HARDWARE, device_bytes=-1), "hardware.device_bytes is -1"),
        (lambda: Interval(value=3, low=4, high=5), "Interval 4 to 5 does not hold its value 3"),
        (lambda: plan(version=2), "plan.version is 2"),
    ],
)
def test_what_a_plan_may_not_hold(make: Callable[[], object], said: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


GOOD = plan_text(full_plan())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is None; expected a mapping"),
        ("a", "it is 'a'; expected a mapping"),
        ("- 1", "it is a list of 1; expected a mapping"),
        ("window: 1", "its version is None; this release reads version 1"),
        ("version: true", "its version is True"),
        ("version: 2", "its version is 2; this release reads version 1: write it anew"),
        ("version: 1", "plan has no entry 'model'"),
        ("version: 1\nversion: 1", "the entry 'version' twice"),
        ("version: 1\nx: &a [1]\ny: *a", "YAML alias"),
        ("version: 1\n? [a]\n: 1", "a key that is no plain text"),
        ("!!python/object/apply:os.system ['rm -rf /']", "it is no YAML"),
        ("version: " + "9" * 5000, "a value that YAML cannot hold"),
        ("[" * 5000, "nested more than 20 deep"),
        ("version: 1\n\x00", "it is no YAML"),
        ("version: 2020-99-99", "a value that YAML cannot hold"),
        (GOOD.replace("slots: 2", "slotz: 2"), "plan.window has the unknown entry 'slotz'; known: slots, resident"),
        (GOOD.replace("slots: 2", "slots: .inf"), "plan.window.slots is inf"),
        (GOOD.replace("slots: 2", "slots: '2; rm -rf /'"), "plan.window.slots is '2; rm -rf /'"),
        (GOOD.replace("slots: 2", "slots: " + "9" * 4000), "plan.window.slots is a number of 13288 bits"),
        (
            GOOD.replace("order: next-use", "order: random"),
            "plan.optimizer.order is 'random'; expected one of next-use",
        ),
        (GOOD.replace("name: GPT", 'name: "G\\nPT"'), "plan.model.name is 'G\\nPT'; expected a line"),
        (GOOD.replace("name: GPT", "name: [1]"), "plan.model.name is a list of 1"),
        (GOOD.replace("  16: 4", "  -16: 4"), "a key of plan.hardware.adam_params_per_s is -16"),
        (
            GOOD.replace("weights: bf16", "weights: int4"),
            "plan.precision.weights is 'int4'; expected one of fp32, bf16",
        ),
    ],
)
def test_hostile_files_are_refused_in_one_line(text: str, said: str) -> None:
    assert text != GOOD
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


@examples(150)
@given(
    at=st.integers(0, len(GOOD) - 1),
    cut=st.integers(0, 30),
    put=st.text(alphabet=st.characters(codec="utf-8"), max_size=12),
)
def test_a_damaged_file_is_a_plan_or_one_line(at: int, cut: int, put: str) -> None:
    try:
        parse_plan(GOOD[:at] + put + GOOD[at + cut :])
    except PlanError as error:
        assert "\n" not in str(error)


@examples(100)
@given(
    data=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    section=st.sampled_from(["model", "window", "optimizer", "loop", "precision", "budget", "nvme", "hardware"]),
)
def test_any_data_in_any_section_is_a_plan_or_one_line(data: Any, section: str) -> None:
    whole = full_plan().as_mapping() | {section: data}
    try:
        Plan.from_mapping(whole, "plan")
    except PlanError as error:
        assert "\n" not in str(error)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path, said in [
        (tmp_path / "absent.yaml", "is not there; write one with `tightship offload plan`"),
        (tmp_path, "is not there"),
        (Path("/dev/zero"), "is not there"),
        (Path("a\0b"), "is not there"),
    ]:
        with pytest.raises(PlanError, match=said):
            read_plan(path)
    (tmp_path / "large.yaml").write_bytes(b"a" * (MOST_BYTES + 1))
    with pytest.raises(PlanError, match=f"more than {MOST_BYTES} bytes"):
        read_plan(tmp_path / "large.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="not UTF-8"):
        read_plan(tmp_path / "binary.yaml")
    with pytest.raises(PlanError, match="cannot be written"):
        write_plan(plan(), tmp_path / "absent" / "plan.yaml")


def test_the_file_is_plain_yaml() -> None:
    assert yaml.safe_load(GOOD)["window"] == {"slots": 2, "resident": [2], "prefetch": 1}


def test_a_plan_for_another_model_is_refused_with_the_difference() -> None:
    assert model_differences(MODEL, replace(MODEL, name="Other", layers=None)) == []
    fewer = replace(MODEL, layer_parameters=(10, 10))
    assert model_differences(MODEL, fewer) == ["the plan is for 3 layers, this model has 2"]
    other = replace(MODEL, layer_parameters=(10, 11, 12), rest_parameters=8, block="Layer")
    assert model_differences(MODEL, other) == [
        "layer 1 has 10 parameters in the plan and 11 in this model",
        "the rest has 7 parameters in the plan, 8 in this model",
        "the plan's layers are of class 'Block', this model's of 'Layer'",
    ]
    known, renamed = replace(MODEL, fingerprint="a" * 32), replace(MODEL, fingerprint="b" * 32)
    assert len(model_differences(known, renamed)) == 1
    assert model_differences(MODEL, renamed) == []


def test_a_plan_for_another_machine_is_refused_with_the_difference() -> None:
    assert hardware_differences(HARDWARE, replace(HARDWARE, h2d_bytes_per_s=1e9, host_bytes=125 * 2**30)) == []
    assert hardware_differences(HARDWARE, replace(HARDWARE, host_bytes=2**40, cores=64)) == []
    other = replace(HARDWARE, device="NVIDIA T4", device_bytes=15 * 2**30, host_bytes=32 * 2**30, cores=4)
    assert hardware_differences(HARDWARE, other) == [
        "the plan is for a 'NVIDIA H200', this machine has a 'NVIDIA T4'",
        "the plan counts on 139.0 GiB of device memory, this machine allows 15.0 GiB",
        "the plan counts on 128.0 GiB of host memory, this machine allows 32.0 GiB",
        "the plan counts on 16 cores, this machine has 4",
    ]


def test_fingerprints_tell_models_apart() -> None:
    base = [("a.weight", (3, 4)), ("a.bias", (4,))]
    others = [[("a.weight", (4, 3)), ("a.bias", (4,))], [("b.weight", (3, 4)), ("a.bias", (4,))], base[:1], base[::-1]]
    assert len({fingerprint(one) for one in [base, *others]}) == 5
    assert fingerprint(base) == fingerprint(iter(base))
    assert len(fingerprint(base)) == 32


def test_the_share_of_no_offload_is_never_above_one() -> None:
    prediction = full_plan().prediction
    assert prediction is not None
    assert prediction.share_frac == Interval(value=0.75, low=1.5e9 / 2.2e9, high=1.5e9 / 1.8e9)
    faster = replace(prediction, no_offload_step_ns=Interval(value=2.1e9, low=2e9, high=2.2e9))
    assert faster.share_frac.value == faster.share_frac.high == 1.0
