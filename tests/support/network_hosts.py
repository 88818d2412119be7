"""Hosts on one machine: each has its own address, its own name for root, and processes that see only each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
from services import die_with_parent
from waiting import wait_for


@dataclass(frozen=True, kw_only=True)
class NetworkHost:
    """One of them, while it is there."""

    name: str
    gateway: str
    """Address of this machine, as the host sees it."""
    inside: tuple[str, ...]
    """Begins a command that runs on it."""


def why_not() -> str:
    """Why this machine can have none; empty where it can."""
    if os.getuid():
        return "network namespaces need root"
    if not all(shutil.which(tool) for tool in ("ip", "unshare", "nsenter")):
        return "network namespaces need ip, unshare and nsenter"
    tried = subprocess.run(["unshare", "--net", "--pid", "--fork", "--mount-proc", "true"], capture_output=True)
    return f"the kernel permits no namespaces: {tried.stderr.decode().strip()}" if tried.returncode else ""


@contextmanager
def network_host(name: str, number: int, *, user: str = "root") -> Iterator[NetworkHost]:
    """A host of this number (1 to 250); two with one number cannot be there at once.

    :param user: what its own /etc/passwd calls whoever runs processes there.

    :raises CalledProcessError: the kernel refuses a namespace or a link.
    """
    # Numbers of processes tell apart test runs beside each other.
    link, network = f"ts{number}-{os.getpid()}", f"10.{213 + os.getpid() % 40}.{number}"
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "infinity"]
    with subprocess.Popen(command, preexec_fn=die_with_parent) as holder:  # noqa: PLW1509
        try:
            [first] = wait_for(psutil.Process(holder.pid).children, "the namespaces")
            wait_for(lambda: first.name() == "sleep", "the namespaces to be made")
            inside = ("nsenter", "--target", str(first.pid), "--net", "--pid", "--mount", "--")
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(first.pid))
            ip("address", "add", f"{network}.1/24", "dev", link)
            ip("link", "set", link, "up")
            for change in (("address", "add", f"{network}.2/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
                subprocess.run([*inside, "ip", *change], check=True, capture_output=True)
            with tempfile.NamedTemporaryFile("w", prefix="tightship-passwd-") as passwd:
                passwd.write(f"{user}:x:0:0::/root:/bin/sh\n")
                passwd.flush()
                bind = (*inside, "mount", "--bind", passwd.name, "/etc/passwd")
                subprocess.run(bind, check=True, capture_output=True)
            yield NetworkHost(name=name, gateway=f"{network}.1", inside=inside)
        finally:
            holder.kill()  # the link goes with the namespace


def ip(*arguments: str) -> None:
    """Change this machine's network."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
