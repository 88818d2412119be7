"""Real jobs under `tightship run`: who is a rank, and how many steps it has made."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import launch, run_dirs, start
from waiting import PATIENCE_S, wait_for

from tightship_collectors.jobs.live_run import RankView
from tightship_collectors.jobs.ranks import read_ranks
from tightship_platform.units import now_ns

pytestmark = pytest.mark.torch

TRAIN = """
import os, sys, time
import torch

def train(steps, optimizer=None):
    model = torch.nn.Linear(4, 4)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    return optimizer

def wait():
    while not os.path.exists(os.environ["END"]):
        time.sleep(0.02)
"""
PLAIN = f"{TRAIN}\nif __name__ == '__main__':\n    train(7)\n    wait()\n    sys.exit(3)\n"
COUNTS = f"""{TRAIN}
import glob, struct
train(7)
wait()
place = glob.glob(os.environ["TIGHTSHIP_RUN_DIR"] + "/ranks/*")[0]
def count():
    with open(place, "rb") as file:
        return struct.unpack_from("<Q", file.read(), 40)[0]
first = train(3)
print(count())
second = train(2)                # a phase with its own optimizer adds up
print(count())
for _ in range(4):               # two that alternate count as one
    train(1, first), train(1, second)
print(count())
for _ in range(20):              # ids of collected optimizers come back
    train(1)
print(count())
class Odd(torch.optim.SGD):
    __slots__ = ()
    def __hash__(self):
        raise TypeError
train(2, Odd([torch.nn.Parameter(torch.ones(1))], lr=1))
print(count())
sys.exit(3)
"""
Watch = Callable[..., tuple[subprocess.Popen[str], Path]]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """`watch(script, *command, until=…)`: launch, and wait until what the control files say pleases `until`."""
    monkeypatch.setenv("END", str(tmp_path / "end"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started: list[subprocess.Popen[str]] = []

    def begin(
        script: str, *command: str, until: Callable[[tuple[RankView, ...]], bool], options: tuple[str, ...] = ()
    ) -> tuple[subprocess.Popen[str], Path]:
        (tmp_path / "job.py").write_text(script)
        job = start(*command, options=options, cwd=tmp_path)
        started.append(job)
        (run_dir,) = wait_for(run_dirs)
        wait_for(lambda: until(read_ranks(run_dir)) or job.poll() is not None)
        assert job.poll() is None, job.communicate()
        return job, run_dir

    yield begin
    (tmp_path / "end").touch()
    for job in started:
        try:
            job.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            job.kill()
            job.communicate()


def end(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout, and of stderr what is not ours."""
    Path(os.environ["END"]).touch()
    said, errors = job.communicate(timeout=PATIENCE_S)
    return job.returncode, said, "\n".join(line for line in errors.splitlines() if not line.startswith("tightship:"))


def have_stepped(*steps: int) -> Callable[[tuple[RankView, ...]], bool]:
    return lambda views: [view.steps for view in views if view.is_rank] == list(steps)


@pytest.mark.sliced(1)
@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "job.py"),
        (sys.executable, "-m", "job"),
        ("bash", "-c", f"{sys.executable} job.py"),
        (sys.executable, "-c", f"import subprocess, sys; sys.exit(subprocess.call([{sys.executable!r}, 'job.py']))"),
    ],
    ids=["script", "module", "bash", "subprocess"],
)
def test_one_rank_and_its_steps_however_it_is_started(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TIGHTSHIP_DEBUG", "1")
    before_ns = now_ns()
    job, run_dir = watch(COUNTS, *command, until=have_stepped(7))
    (view,) = read_ranks(run_dir)
    assert (view.rank, view.is_rank, view.guard, view.world_size, view.exiting) == (0, True, True, None, False)
    assert view.first_step_ns is not None and view.last_step_ns is not None
    assert before_ns < view.first_step_ns <= view.last_step_ns < now_ns()
    code, said, errors = end(job)
    assert (code, errors) == (3, "")
    assert run_dirs() == []
    counts = [int(line) for line in said.split()]
    assert [later - earlier for earlier, later in itertools.pairwise([7, *counts])] == [3, 2, 4, 20, 2]


def test_steps_are_not_counted_where_the_user_says_so(watch: Watch) -> None:
    job, run_dir = watch(PLAIN, sys.executable, "job.py", until=bool, options=("--no-steps",))
    (view,) = read_ranks(run_dir)
    assert (view.is_rank, view.steps, view.guard) == (True, None, True)
    assert end(job) == (3, "", "")


SPAWN = f"""{TRAIN}
import torch.distributed as dist

def work(rank, world):
    dist.init_process_group("gloo", init_method="file://" + os.environ["END"] + ".store", rank=rank, world_size=world)
    train(3 + rank)
    dist.barrier()
    wait()
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(2,), nprocs=2)
"""


def test_spawned_trainers_learn_their_rank_at_their_first_step(watch: Watch) -> None:
    job, run_dir = watch(SPAWN, sys.executable, "job.py", until=have_stepped(3, 4))
    views = read_ranks(run_dir)
    assert [(v.rank, v.world_size, v.guard) for v in views if v.is_rank] == [(0, 2, True), (1, 2, True)]
    assert [v.steps for v in views if not v.is_rank] == [0]
    assert end(job)[0] == 0


WORKERS_AND_FORK = f"""{TRAIN}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(4) * index

def wait_for(name):
    while not os.path.exists(os.environ["END"] + "." + name):
        time.sleep(0.02)

if __name__ == "__main__":
    for context, workers in (("fork", 2), ("spawn", 1)):
        loader = torch.utils.data.DataLoader(
            Data(), num_workers=workers, multiprocessing_context=context, persistent_workers=True
        )
        iterator = iter(loader)
        next(iterator)
        train(2)
        wait_for(context)
    del iterator, loader
    train(1)
    child = os.fork()
    if child == 0:
        train(2)
        wait()
        os._exit(0)
    wait_for("more")
    train(1)
    wait()
    os.waitpid(child, 0)
"""


def test_data_loader_workers_are_no_ranks_and_a_forked_trainer_is_one(watch: Watch) -> None:
    job, run_dir = watch(WORKERS_AND_FORK, sys.executable, "job.py", until=have_stepped(2))
    assert len(read_ranks(run_dir)) == 1  # forked workers have no control file at all
    Path(f"{os.environ['END']}.fork").touch()
    wait_for(lambda: len(read_ranks(run_dir)) == 2 and have_stepped(4)(read_ranks(run_dir)))
    assert sum(view.is_rank for view in read_ranks(run_dir)) == 1
    Path(f"{os.environ['END']}.spawn").touch()
    wait_for(lambda: have_stepped(5, 2)(read_ranks(run_dir)))
    parent, child = (view for view in read_ranks(run_dir) if view.is_rank)
    assert (parent.guard, child.guard) == (True, False)  # Kineto's thread did not survive the fork
    Path(f"{os.environ['END']}.more").touch()
    wait_for(lambda: have_stepped(6, 2)(read_ranks(run_dir)))  # each counts for itself
    assert end(job) == (0, "", "")


def test_a_job_says_with_us_what_it_says_without(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        f"{TRAIN}\ntorch.manual_seed(1)\nprint(torch.randn(3), sys.path[1:], sorted(os.listdir('.')))\n"
        "import torch.optim.optimizer as o\nprint(torch.__spec__, torch.__loader__, sys.flags)\n"
        "print('to stderr', file=sys.stderr)\ntrain(3)\nprint([type(f).__name__ for f in sys.meta_path])\n"
        "raise ValueError(5)\n"
    )
    line = [sys.executable, str(script)]
    plain = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    done = launch(*line, cwd=tmp_path)
    assert (done.returncode, plain.returncode) == (1, 1)
    # Loaders show their address.
    blank = [[word for word in out.split() if not word.startswith("0x")] for out in (done.stdout, plain.stdout)]
    assert blank[0] == blank[1]
    assert [x for x in done.stderr.splitlines() if not x.startswith("tightship:")] == plain.stderr.splitlines()
