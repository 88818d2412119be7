"""What a run is called, and what is reported of its command."""

from __future__ import annotations

import os

import pytest

from tightship_collectors.launch.naming import (
    JOB_ID_VARIABLES,
    MAX_ARGUMENT,
    MAX_ARGUMENTS,
    external_id_of,
    image_of,
    parse_labels,
    reported_command,
    user_name,
    workflow_of,
)
from tightship_platform import validation
from tightship_platform.errors import Invalid
from tightship_platform.redaction import HIDDEN
from tightship_platform.validation import NAME_MAX


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 1", "train"),
        ("python3.12 -u -W ignore src/my.model.py x.py", "my.model"),
        ("/opt/venv/bin/python /a/b/train_gpt.py", "train_gpt"),
        ("python -m pkg.train --config c.yaml", "pkg.train"),
        ("python -c print(1)", "python"),
        ("python", "python"),
        ("torchrun --nproc-per-node=8 --master-port 1 src/train.py a.py", "train"),
        ("torchrun --nproc-per-node 8 -m pkg.train", "pkg.train"),
        ("python -m torch.distributed.run --nproc-per-node 8 train.py", "train"),
        ("accelerate launch --config_file x.yaml train.py", "train"),
        ("deepspeed --num_gpus 2 train.py --deepspeed ds.json", "train"),
        ("uv run python train.py", "train"),
        ("./train.py", "train"),
        ("./job.sh 1", "job"),
        ("bash scripts/job.sh 1", "job"),
        ("sh -c true", "sh"),
        ("./simulate -x data.py", "simulate"),
        ("/usr/local/bin/my-tool", "my-tool"),
        ("true", "true"),
    ],
)
def test_the_default_workflow_recurs_with_the_command(command: str, name: str) -> None:
    assert workflow_of(command.split()) == name


@pytest.mark.parametrize(
    "program", ["a\nb", "\x1b[31m", "x" * 1000, "/", "\udcff\udcfe", "\u202e", " ", "python \x00"[:7], "-"]
)
def test_a_default_workflow_is_always_a_name(program: str) -> None:
    name = workflow_of([program])
    assert validation.name("Workflow", name) == name
    assert len(name) <= NAME_MAX


def test_labels() -> None:
    assert parse_labels([]) == {}
    assert parse_labels(["a=b", "c=", "a=d=e"]) == {"a": "d=e", "c": ""}
    for wrong in ("a", "=b", "a\n=b", "a=\x07", "a=" + "x" * (NAME_MAX + 1)):
        with pytest.raises(Invalid):
            parse_labels([wrong])


@pytest.mark.parametrize(
    ("command", "reported"),
    [
        ("train.py --token abc --lr 1", "train.py --token *** --lr 1"),
        ("train.py --hf_token=abc --api-key=x", "train.py --hf_token=*** --api-key=***"),
        (
            "env WANDB_API_KEY=abc AWS_SECRET_ACCESS_KEY=y A=1 x",
            "env WANDB_API_KEY=*** AWS_SECRET_ACCESS_KEY=*** A=1 x",
        ),
        ("train.py --password --lr 1", "train.py --password --lr 1"),
        ("train.py -p x --max-tokens 512 --tokenizer gpt2", "train.py -p x --max-tokens 512 --tokenizer gpt2"),
        ("train.py --token-ids=5 --keys=3 --monkey=4", "train.py --token-ids=5 --keys=3 --monkey=4"),
        ("train.py --token", "train.py --token"),
    ],
)
def test_secrets_are_not_reported(command: str, reported: str) -> None:
    assert reported.count(HIDDEN) == reported.count("***")
    assert reported_command(command.split()) == reported.split()


def test_a_long_command_is_cut() -> None:
    assert reported_command(["x"] * (MAX_ARGUMENTS + 5)) == ["x"] * MAX_ARGUMENTS + ["…"]
    (cut,) = reported_command(["y" * (MAX_ARGUMENT + 5)])
    assert len(cut) == MAX_ARGUMENT and cut.endswith("…")
    assert reported_command([os.fsdecode(b"\xff\n")]) == ["\ufffd\n"]


def test_the_scheduler_names_the_job() -> None:
    assert external_id_of({}) is None
    assert external_id_of({"SLURM_JOB_ID": ""}) is None
    assert external_id_of({"JOB_ID": "7", "SLURM_JOB_ID": "123_4"}) == "123_4"
    for variable in JOB_ID_VARIABLES:
        assert external_id_of({variable: "9.host"}) == "9.host"
    odd = external_id_of({"PBS_JOBID": "a\nb" * 500})
    assert odd is not None and validation.name("External id", odd) == odd


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_name()
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert user_name() == "4000000000"


def test_a_pod_is_named_where_no_scheduler_names_the_job() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-7-abcde"}
    assert external_id_of(pod) == "pod/train-7-abcde"
    assert external_id_of(pod | {"POD_NAME": "train-7"}) == "pod/train-7"
    assert external_id_of(pod | {"SLURM_JOB_ID": "7"}) == "7"
    assert external_id_of({"HOSTNAME": "node-1"}) is None
    assert external_id_of({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None


def test_the_image_is_what_the_environment_names() -> None:
    assert image_of({"HOSTNAME": "x"}) is None
    assert image_of({"CONTAINER_IMAGE": "r/a:1", "SINGULARITY_CONTAINER": "/img/b.sif"}) == "/img/b.sif"
    odd = image_of({"CONTAINER_IMAGE": "a\nb\x1b[31m" + "c" * 1000})
    assert odd is not None and len(odd) == NAME_MAX and odd.isprintable()
