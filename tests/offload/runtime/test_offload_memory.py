"""Host memory: where it comes from, whatever the script's default device; what is pinned has pages of its own."""

from __future__ import annotations

import gc
import mmap
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import pytest
from waiting import wait_for

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Model  # noqa: E402
from offload_loops import batch, loss_of  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends import cuda  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402
from tightship_offload.backends.cuda import CudaBackend, own_pages  # noqa: E402
from tightship_offload.errors import OffloadError  # noqa: E402

pytestmark = pytest.mark.torch
TESTS = Path(__file__).parents[2] / "support"


Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, warm: tuple[str, ...]) -> Run:
    """Runs a script apart, for it may crash."""

    def of(script: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(script)
        env = os.environ | {"PYTHONPATH": str(TESTS)}
        return subprocess.run([*warm, str(path)], env=env, capture_output=True, text=True, timeout=200)

    return of


def test_another_default_device_changes_nothing(run: Run) -> None:
    ended = run("""
import torch
torch.set_num_threads(1)
from offload_loops import each_step, plain_step, same
def loop(model, optimizer, start):
    torch.set_default_device("meta")
    start()
    torch.set_default_device(None)
    return each_step(plain_step)(model, optimizer, lambda: None)
same(loop)
""")
    assert ended.returncode == 0, ended.stderr


def is_mapped(address: int) -> bool:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


class Runtime:
    """What CUDA is told of host memory."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - its name
        self.pinned[address] = size
        return self.status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - its name
        assert is_mapped(address)
        del self.pinned[address]
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    told = Runtime()
    monkeypatch.setattr(cuda, "_runtime", lambda: told)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return told


def backend() -> CudaBackend:
    return CudaBackend(torch.device("cuda", 0))


def test_whole_pages_are_pinned_and_given_back_first(runtime: Runtime) -> None:
    machine = backend()
    sizes = [64, mmap.PAGESIZE, mmap.PAGESIZE + 64]
    buffers = [machine.host_buffer(size) for size in sizes]
    assert [buffer.numel() for buffer in buffers] == sizes
    assert [buffer.data_ptr() % mmap.PAGESIZE for buffer in buffers] == [0, 0, 0]
    assert [runtime.pinned[b.data_ptr()] for b in buffers] == [mmap.PAGESIZE, mmap.PAGESIZE, 2 * mmap.PAGESIZE]
    for buffer in buffers:
        buffer.fill_(7)
    view = buffers[2][-64:].view(torch.float32)
    del buffers, buffer
    gc.collect()
    assert len(runtime.pinned) == 3
    machine.close()
    assert runtime.pinned == {}
    assert view.view(torch.uint8).eq(7).all()  # pinned no more, but there as long as it is used


def test_memory_that_cannot_be_pinned(runtime: Runtime) -> None:
    runtime.status = 2
    with pytest.raises(OffloadError, match=r"Cannot pin 1 MiB of host memory \(CUDA error 2"):
        backend().host_buffer(2**20)


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTFORK"), reason="the platform copies all memory into a fork")
def test_a_forked_child_may_drop_what_it_does_not_have(run: Run) -> None:
    ended = run("""
import ctypes, gc, mmap, os
from tightship_offload.backends.cuda import own_pages
pages = own_pages(2**20)
address = pages.data_ptr()
child = os.fork()
if child == 0:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] + [ctypes.c_int] * 3, ctypes.c_long]
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    there = libc.mmap(address, 2**20, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)
    assert there == address, "the parent's pages came along"
    ctypes.memset(address, 5, 2**20)
    del pages
    gc.collect()
    os._exit(ctypes.string_at(address, 1)[0])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
""")
    assert ended.returncode == 0, ended.stderr


def test_pages_are_unmapped_with_the_last_tensor() -> None:
    pages = own_pages(0)
    assert pages.numel() == mmap.PAGESIZE
    before = len(cuda._mapped)
    part = pages[:10]
    del pages
    assert len(cuda._mapped) == before
    del part
    assert len(cuda._mapped) == before - 1


class Held:
    """What of one training is there."""

    def __init__(self) -> None:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        machine = CpuBackend()
        offload.apply(model, optimizer, window=2, backend=machine)
        engine = offload.engine_of(model)
        loss_of(model, batch()).backward()
        optimizer.step()
        self.alive = [ref(one) for one in (model, optimizer, machine, engine, engine.layers[0].parameters[0])]
        self.slab = ref(engine.layers[0].weights)


def test_nothing_of_a_training_is_left_when_its_model_is_gone() -> None:
    """As between the trials of a sweep, with updates still on their way."""
    held = Held()

    def gone() -> bool:
        gc.collect()
        return not any(one() is not None for one in (*held.alive, held.slab))

    wait_for(gone, "a training to be collected")


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="the platform does not show pages")
def test_pages_are_touched_before_they_are_pinned_and_may_be_huge() -> None:
    pages = own_pages(8 * 2**20)
    first, count = pages.data_ptr() // mmap.PAGESIZE, 8 * 2**20 // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(8 * first)
        entries = struct.unpack(f"{count}Q", pagemap.read(8 * count))
    assert all(entry >> 62 for entry in entries)  # in memory, or swapped out
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert "hg" in _flags_of(pages.data_ptr())


def _flags_of(address: int) -> list[str]:
    """What the kernel says of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *words = line.split()
        if "-" in key:
            begin, _, end = key.partition("-")
            inside = int(begin, 16) <= address < int(end, 16)
        elif inside and key == "VmFlags:":
            return words
    return []
