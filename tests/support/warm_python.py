"""A Python that has imported torch and runs every script in a fork of itself.

Importing torch costs two processor seconds, and what its optimizers import when the first one is made costs two more.
A script that is run here finds all that imported; else it sees what it sees in its own process: environment,
folder, arguments and output, the `sitecustomize` of its PYTHONPATH, and an interpreter that ends as always.

Not for what has to happen before torch is imported, nor for recordings that an agent asks for: Kineto's thread does not
survive a fork.

As a script: `warm_python.py SOCKET SCRIPT ARGUMENT...` runs one there and ends as it ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

OPTIMIZERS = ("torch", "torch._dynamo")


@contextmanager
def warm_python(*modules: str) -> Iterator[tuple[str, ...]]:
    """The words that stand for `python` in a command, where these modules are imported already."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTSHIP_")}
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        path = f"{folder}/s"
        command = [sys.executable, __file__, "--serve", path, *modules]
        server = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
            yield sys.executable, __file__, path
        finally:
            server.communicate()  # it ends with its input


# ---- the side that asks ----------------------------------------------------------------------------------------------


def send_command(
    there: socket.socket, command: Sequence[str], env: Mapping[str, str], descriptors: Sequence[int], **more: Any
) -> None:
    """Have a script run. What comes back is a line with its pid, and when it has ended one with its status.

    :param descriptors: its output, its errors and, if it may read any, its input.
    :param more: `cwd`, and `session`: whether it gets its own.
    """
    request = json.dumps(
        {"cwd": str(Path.cwd()), "session": False, **more, "env": dict(env), "command": command}
    ).encode()
    socket.send_fds(there, [request[:1]], descriptors)
    there.sendall(request[1:])
    there.shutdown(socket.SHUT_WR)


def _ask(path: str, *command: str) -> int:
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(path)
        send_command(there, command, os.environ, (1, 2))
        status = int(there.makefile().read().splitlines()[1].split()[0])
    if os.WIFSIGNALED(status):
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


# ---- the side that runs ----------------------------------------------------------------------------------------------


def _serve(path: str, *modules: str) -> tuple[str, ...]:
    """Returns only in the process that is to run a script: its path and arguments."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # a collection would copy into each fork what it looks at
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    keepers: set[int] = set()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            for keeper in keepers:
                with suppress(ProcessLookupError):
                    os.killpg(keeper, signal.SIGKILL)
            os._exit(0)
        there, _ = listener.accept()
        keeper = os.fork()
        if not keeper:
            os.setpgid(0, 0)
            listener.close()
            script = os.fork()
            if not script:
                return _become(there)
            _keep(script, there)
        with suppress(PermissionError):  # it may have done so itself
            os.setpgid(keeper, keeper)
        there.close()
        keepers.add(keeper)
        while ended := os.waitpid(-1, os.WNOHANG)[0] if keepers else 0:
            keepers.discard(ended)


def _keep(script: int, there: socket.socket) -> NoReturn:
    """Say which process the script is, and how it ends; end it when nobody asks any more."""
    with suppress(OSError):
        there.sendall(f"{script}\n".encode())
    poll, ended = select.poll(), os.pidfd_open(script)
    poll.register(ended, select.POLLIN)
    poll.register(there, 0)  # that the other side is gone
    if ended not in dict(poll.poll()):
        os.kill(script, signal.SIGKILL)
    _, status = os.waitpid(script, 0)
    with suppress(OSError):
        there.sendall(f"{status}\n".encode())
    os._exit(0)


def _become(there: socket.socket) -> tuple[str, ...]:
    """Be the process that was asked for."""
    first, (out, err, *given), _, _ = socket.recv_fds(there, 1, 3)
    request = json.loads(first + there.makefile("rb").read())
    there.close()
    if request["session"]:
        os.setsid()
    source = given[0] if given else os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((source, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    command: list[str] = request["command"]
    sys.argv[:] = command
    sys.path[:1] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.modules.pop("sitecustomize", None)
    with suppress(ImportError):
        importlib.import_module("sitecustomize")
    sys.path.insert(0, str(Path(command[0]).resolve().parent))
    return tuple(command)


def _run(script: str) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _run(_serve(*sys.argv[2:])[0])
    else:
        sys.exit(_ask(*sys.argv[1:]))
