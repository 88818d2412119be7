"""The daemon's socket: real datagrams between this process, its children and the service."""

from __future__ import annotations

import array
import os
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE_S, wait_for

from tightship_collectors.jobs.live_run import HostRun
from tightship_collectors.kineto import service as service_module
from tightship_collectors.kineto.endpoint import NAME, Endpoint, Unservable
from tightship_collectors.kineto.service import BURST, KinetoService
from tightship_platform.units import NS_PER_S

ME = os.getpid()
ROOT = os.geteuid() == 0
NOBODY = 65534


def poll(pid: int = ME, *, kinds: int = 3) -> bytes:
    return struct.pack("<Q32s", 20, b"req") + struct.pack("<iiqi", kinds, 1, 0, pid)


class Job:
    """Speaks as libkineto does, from its own socket."""

    def __init__(self, run_dir: Path, name: str | None = None) -> None:
        self.path = run_dir / (name or f"dynoconfigclient{uuid.uuid4()}")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.daemon = str(run_dir / NAME)

    def send(self, datagram: bytes, to: str | None = None) -> None:
        self.socket.sendto(datagram, to or self.daemon)

    def ask(self, datagram: bytes, *, patience_s: float = PATIENCE_S) -> tuple[str, bytes]:
        """Send it and return type and payload of the answer; TimeoutError when none comes."""
        self.send(datagram)
        return self.answer(patience_s)

    def answer(self, patience_s: float = PATIENCE_S) -> tuple[str, bytes]:
        self.socket.settimeout(patience_s)
        answer, source = self.socket.recvfrom(65536)
        assert source == self.daemon  # from anywhere else it would abort a real job
        size, kind = struct.unpack_from("<Q32s", answer)
        assert size == len(answer) - 40
        return kind.rstrip(b"\0").decode(), answer[40:]


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def run_in(folder: Path, key: str = "a" * 16, *, uid: int | None = None, pids: tuple[int, ...] = (ME,)) -> HostRun:
    run_dir = folder / key
    run_dir.mkdir(mode=0o700, exist_ok=True)
    owner = os.getuid() if uid is None else uid
    if owner != os.getuid():
        os.chown(run_dir, owner, -1)
    return HostRun(run=key, run_dir=run_dir, uid=owner, pids=pids, ranks=(), start_ns=0)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Short, because socket paths end at 108 bytes, and passable for other users."""
    path = Path(f"/tmp/tsk-{uuid.uuid4().hex[:8]}")
    path.mkdir(mode=0o755)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[KinetoService]:
    """A busy test machine may be slower than libkineto's patience; these tests have more of it."""
    monkeypatch.setattr(service_module, "MAX_AGE_NS", NS_PER_S)
    made = KinetoService()
    yield made
    made.close()


def test_an_idle_process_with_nothing_to_do_gets_an_empty_answer(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    job = Job(run.run_dir)
    assert job.ask(poll()) == ("req", b"")
    seen = service.client(run.run, ME)
    assert seen is not None
    assert (seen.pid, seen.idle, seen.period_ns) == (ME, True, None)
    job.ask(poll(kinds=1))
    seen = service.client(run.run, ME)
    assert seen is not None
    assert seen.idle is False
    assert seen.period_ns is not None


def test_a_registration_is_answered_with_the_number_of_processes(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    ctxt = struct.pack("<Q32siiq", 16, b"ctxt", 0, ME, 0)
    assert Job(run.run_dir).ask(ctxt) == ("ctxt", struct.pack("<i", 1))


def test_a_config_is_handed_out_once_and_only_to_its_idle_process(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    handed: list[int] = []

    def compose(now_ns: int) -> bytes:
        handed.append(now_ns)
        return b"K=V\n"

    service.arm(run.run, ME, compose)
    service.arm(run.run, ME + 1, lambda _: b"not yours")
    job = Job(run.run_dir)
    assert job.ask(poll(kinds=1)) == ("req", b"")
    assert service.handed_ns(run.run, ME) is None
    assert job.ask(poll()) == ("req", b"K=V\n")
    assert job.ask(poll()) == ("req", b"")
    assert service.handed_ns(run.run, ME) == handed[0]
    assert len(handed) == 1
    assert service.disarm(run.run, ME) is False
    assert service.disarm(run.run, ME + 1) is True


def test_a_withdrawn_config_is_never_handed_out(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    service.arm(run.run, ME, lambda _: b"K=V\n")
    assert service.disarm(run.run, ME) is True
    assert Job(run.run_dir).ask(poll()) == ("req", b"")


def test_a_config_may_decline_this_poll_and_come_with_the_next(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    answers: list[bytes | None] = [None, b"K=V\n"]
    service.arm(run.run, ME, lambda _: answers.pop(0))
    job = Job(run.run_dir)
    assert job.ask(poll()) == ("req", b"")
    assert job.ask(poll()) == ("req", b"K=V\n")


def test_a_config_that_cannot_be_delivered_stays_armed(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    service.arm(run.run, ME, lambda _: b"K=V\n")
    job = Job(run.run_dir)
    name = job.path
    hidden = name.with_name("away")

    def vanish(_: int) -> bytes:
        name.rename(hidden)
        return b"K=V\n"

    service.arm(run.run, ME, vanish)
    job.send(poll())
    wait_for(lambda: service.dropped().get("undeliverable") == 1)
    assert service.handed_ns(run.run, ME) is None
    hidden.rename(name)
    service.arm(run.run, ME, lambda _: b"K=V\n")
    assert job.ask(poll()) == ("req", b"K=V\n")


def test_a_claimed_pid_that_the_kernel_does_not_confirm_is_ignored(service: KinetoService, folder: Path) -> None:
    run = run_in(folder, pids=(ME, 1))
    service.update([run])
    service.arm(run.run, 1, lambda _: b"K=V\n")
    job = Job(run.run_dir)
    job.send(poll(pid=1))
    wait_for(lambda: service.dropped().get("forged") == 1)
    assert service.handed_ns(run.run, 1) is None
    assert job.ask(poll()) == ("req", b"")  # the first answer that arrives is the one to the honest question


def test_a_process_that_is_not_of_the_run_is_ignored(service: KinetoService, folder: Path) -> None:
    run = run_in(folder, pids=(1,))
    service.update([run])
    job = Job(run.run_dir)
    job.send(poll())
    wait_for(lambda: service.dropped().get("stranger") == 1)
    assert service.client(run.run, ME) is None


@pytest.mark.parametrize("name", ["dynolog2", "dynoconfigclient-x", "dynoconfigclient" + "z" * 36])
def test_an_address_that_is_no_client_of_the_run_is_never_answered(
    service: KinetoService, folder: Path, name: str
) -> None:
    run = run_in(folder)
    service.update([run])
    Job(run.run_dir, name).send(poll())
    wait_for(lambda: service.dropped().get("foreign address") == 1)


def test_a_client_in_another_folder_is_never_answered(service: KinetoService, folder: Path) -> None:
    run, other = run_in(folder), run_in(folder, "b" * 16)
    service.update([run, other])
    job = Job(other.run_dir)
    job.send(poll(), to=str(run.run_dir / NAME))
    wait_for(lambda: service.dropped().get("foreign address") == 1)
    assert job.ask(poll()) == ("req", b"")


def test_abstract_and_nameless_senders_are_never_answered(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind(f"\0dynoconfigclient{uuid.uuid4()}\0")
        abstract.sendto(poll(), str(run.run_dir / NAME))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nameless:
        nameless.sendto(poll(), str(run.run_dir / NAME))
    wait_for(lambda: service.dropped().get("foreign address") == 2)


def test_an_answer_does_not_follow_a_link_to_another_jobs_socket(folder: Path) -> None:
    run = run_in(folder)
    victim = Job(run_in(folder, "b" * 16).run_dir)
    lure = run.run_dir / f"dynoconfigclient{uuid.uuid4()}"
    lure.symlink_to(victim.path)
    endpoint = Endpoint.bind(run)
    try:
        assert endpoint.is_client_address(str(lure))
        assert endpoint.send(str(lure), b"x" * 40) is False
        assert endpoint.send(str(victim.path), b"x" * 40) is False
        own = Job(run.run_dir)
        assert endpoint.send(str(own.path), b"x" * 40) is True
    finally:
        endpoint.close()
    assert own.socket.recv(100) == b"x" * 40
    victim.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        victim.socket.recv(100)


def test_garbage_is_counted_and_the_next_question_answered(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    job = Job(run.run_dir)
    for garbage in (b"", b"x", os.urandom(200), poll() + b"\0", b"y" * 60_000):
        job.send(garbage)
    assert job.ask(poll()) == ("req", b"")
    assert service.dropped() == {"malformed": 5}


def test_descriptors_that_a_sender_slips_in_are_closed(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    job = Job(run.run_dir)
    with (folder / "bait").open("w") as bait:
        before = open_descriptors()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [bait.fileno()] * 20))]
        for _ in range(20):
            job.socket.sendmsg([poll()], rights, 0, job.daemon)
        wait_for(lambda: service.dropped().get("malformed") == 20)
        assert open_descriptors() == before


def test_a_question_that_waited_too_long_is_not_answered(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    job = Job(run.run_dir)
    with service._lock:  # the service cannot look while it is held
        job.send(poll())
        time.sleep(service_module.MAX_AGE_NS / NS_PER_S + 0.05)
    wait_for(lambda: service.dropped().get("late") == 1)
    assert job.ask(poll()) == ("req", b"")  # answered in its own time, not a poll behind


def test_a_flood_does_not_starve_another_run(service: KinetoService, folder: Path) -> None:
    flooded, quiet = run_in(folder), run_in(folder, "b" * 16)
    service.update([flooded, quiet])
    flooder = Job(flooded.run_dir)
    flooder.socket.setblocking(False)
    job = Job(quiet.run_dir)
    sent = 0
    for _ in range(20):
        try:
            for _ in range(5 * BURST):
                flooder.send(b"x")
                sent += 1
        except BlockingIOError:
            assert sent  # the queue is full: the kernel holds the flooder back
        assert job.ask(poll()) == ("req", b"")


def test_the_socket_is_private_and_goes_with_the_run(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    path = run.run_dir / NAME
    assert path.stat().st_mode & 0o777 == 0o600
    job = Job(run.run_dir)
    job.ask(poll())
    service.update([])
    assert not path.exists()
    assert service.client(run.run, ME) is None
    with pytest.raises(FileNotFoundError):
        job.send(poll())


def test_a_restarted_agent_takes_over_from_one_that_was_killed(folder: Path) -> None:
    run = run_in(folder)
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stale.bind(str(run.run_dir / NAME))
    stale.close()  # as after kill -9: the path stays, nobody listens
    service = KinetoService()
    try:
        service.update([run])
        assert service.refusal(run.run) is None
        assert Job(run.run_dir).ask(poll()) == ("req", b"")
    finally:
        service.close()


def test_a_removed_socket_is_bound_again_and_what_is_armed_stays_so(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    service.arm(run.run, ME, lambda _: b"K=V\n")
    (run.run_dir / NAME).unlink()
    service.update([run])
    assert Job(run.run_dir).ask(poll()) == ("req", b"K=V\n")


def test_two_agents_do_not_steal_each_others_runs(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    service.update([run])
    second = KinetoService()
    try:
        second.update([run])
        assert "another agent" in (second.refusal(run.run) or "")
        assert Job(run.run_dir).ask(poll()) == ("req", b"")
        service.close()
        second.update([run])
        assert second.refusal(run.run) is None
        assert Job(run.run_dir).ask(poll()) == ("req", b"")
    finally:
        second.close()


def test_a_folder_that_others_can_enter_is_not_served(service: KinetoService, folder: Path) -> None:
    run = run_in(folder)
    run.run_dir.chmod(0o755)
    service.update([run])
    assert "private" in (service.refusal(run.run) or "")
    run.run_dir.chmod(0o700)
    service.update([run])
    assert service.refusal(run.run) is None


def test_a_name_that_is_taken_by_a_file_is_left_alone(folder: Path) -> None:
    run = run_in(folder)
    (run.run_dir / NAME).write_text("mine")
    with pytest.raises(Unservable, match="not a socket"):
        Endpoint.bind(run)
    assert (run.run_dir / NAME).read_text() == "mine"


def test_a_path_beyond_what_a_socket_can_have_is_refused(folder: Path) -> None:
    run = run_in(folder, "c" * 120)
    with pytest.raises(Unservable):
        Endpoint.bind(run)


SPEAK_AS = """
import os, socket, struct, sys, uuid
run_dir, uid = sys.argv[1], int(sys.argv[2])
os.setgid(uid); os.setuid(uid)
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(f"{run_dir}/dynoconfigclient{uuid.uuid4()}")
print(os.getpid(), flush=True)
sys.stdin.readline()
s.sendto(struct.pack("<Q32siiqi", 20, b"req", 3, 1, 0, os.getpid()), f"{run_dir}/dynolog")
s.settimeout(10)
print(s.recv(1000)[40:].decode(), flush=True)
"""


@pytest.mark.skipif(not ROOT, reason="only root can be somebody else")
def test_an_agent_of_root_serves_another_users_job_and_nobody_else_in_its_name(
    service: KinetoService, folder: Path
) -> None:
    run = run_in(folder, uid=NOBODY)
    with subprocess.Popen(
        [sys.executable, "-c", SPEAK_AS, str(run.run_dir), str(NOBODY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        pid = int(job.stdout.readline())
        service.update([run_in(folder, uid=NOBODY, pids=(pid, ME))])
        assert (run.run_dir / NAME).stat().st_uid == NOBODY
        service.arm(run.run, pid, lambda _: b"K=V")
        Job(run.run_dir).send(poll())  # root, in the folder of nobody's run
        wait_for(lambda: service.dropped().get("forged") == 1)
        job.stdin.write("go\n")
        job.stdin.flush()
        assert job.stdout.readline().strip() == "K=V"


SWAP_AS = """
import ctypes, os, sys
run_dir, link, uid = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2]), int(sys.argv[3])
os.setgid(uid); os.setuid(uid)
swap = ctypes.CDLL(None).renameat2
print("swapping", flush=True)
while os.getppid() == int(sys.argv[4]):
    swap(-100, run_dir, -100, link, 2)  # RENAME_EXCHANGE
"""


@pytest.mark.skipif(not ROOT, reason="only root can be somebody else")
def test_a_folder_that_its_owner_swaps_for_a_link_leads_root_nowhere(folder: Path) -> None:
    """Its owner swaps the two all the while, so that some binds meet the link after they looked at the folder."""
    parent, secret = folder / "theirs", folder / "secret"
    parent.mkdir(mode=0o700)
    os.chown(parent, NOBODY, NOBODY)
    run = run_in(parent, uid=NOBODY)
    secret.mkdir(mode=0o770)  # also what only a group of root's may write to
    link = parent / "link"
    link.symlink_to(secret)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    served = 0
    command = [sys.executable, "-c", SWAP_AS, str(run.run_dir), str(link), str(NOBODY), str(ME)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline() == "swapping\n"
            for _ in range(2000):
                try:
                    endpoint = Endpoint.bind(run)
                except Unservable:
                    pass
                else:
                    served += 1
                    endpoint.close()
                assert list(secret.iterdir()) == []
        finally:
            swapper.kill()
    assert served, "some of them met the folder"


@pytest.mark.skipif(not ROOT, reason="only root can be somebody else")
def test_a_socket_with_a_second_name_is_not_taken_for_a_dead_agents(folder: Path) -> None:
    run = run_in(folder, uid=NOBODY)
    other = Job(folder, "others")
    os.link(other.path, run.run_dir / NAME)
    other.socket.close()
    with pytest.raises(Unservable, match="is not a socket"):
        Endpoint.bind(run)
    assert other.path.stat().st_uid == 0


def test_an_error_in_one_config_does_not_end_the_service(service: KinetoService, folder: Path) -> None:
    broken, fine = run_in(folder), run_in(folder, "b" * 16)
    service.update([broken, fine])

    def compose(_: int) -> bytes:
        raise RuntimeError("planned")

    service.arm(broken.run, ME, compose)
    Job(broken.run_dir).send(poll())
    wait_for(lambda: service.dropped().get("socket error") == 1)
    assert Job(fine.run_dir).ask(poll()) == ("req", b"")
    service.disarm(broken.run, ME)
    service.update([broken, fine])
    assert Job(broken.run_dir).ask(poll()) == ("req", b"")
