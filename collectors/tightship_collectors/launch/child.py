"""The command as a child process: started as a shell would, waited for, signals passed on."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence

from tightship_collectors.launch.group_watch import GroupWatch
from tightship_platform.errors import TightshipError

PASSED_ON = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTSTP,
        signal.SIGCONT,
    }
)
_WAITED_FOR = PASSED_ON | {signal.SIGCHLD}
_JOB_CONTROL_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
LOOK_S = 10.0
"""A child is looked after at least so often, should a SIGCHLD ever be lost."""


class CannotStart(TightshipError):
    """The command cannot be run; the exit code is the one that a shell gives."""

    def __init__(self, program: str, error: OSError) -> None:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            self.exit_code = 127
            why = "command not found" if os.sep not in program else f"{error.strerror}"
        else:
            self.exit_code = 126
            why = f"{error.strerror}"
        super().__init__(f"{program}: {why}")


class Child:
    """A running command, in our session, process group and terminal. From here on the launcher takes signals for it.

    :raises CannotStart: there is no such program, or it may not be run.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, the exit code would be lost
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        self._watch = GroupWatch(PASSED_ON)
        try:
            self.pid = _spawn(command, environ, before)
        except OSError as error:
            self._watch.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise CannotStart(command[0], error) from error

    def wait(self) -> int:
        """The exit code as a shell gives it: 128 + n when signal n ended the command."""
        while True:
            code = self._look()
            if code is not None:
                self._watch.close()
                return code
            info = signal.sigtimedwait(_WAITED_FOR, LOOK_S)
            if info is not None and info.si_signo != signal.SIGCHLD and self._should_pass_on(info):
                os.kill(self.pid, info.si_signo)

    def _should_pass_on(self, info: signal.struct_siginfo) -> bool:
        """See [Note: no signal twice]."""
        not_ours = info.si_code > 0 or _descends_from(info.si_pid, self.pid)  # of the kernel, or of the job itself
        went_to_group = self._watch.went_to_group(info.si_signo, 0 if not_ours else info.si_pid)
        return not not_ours and not went_to_group

    def _look(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in _JOB_CONTROL_STOPS:
                # Ctrl-Z: the shell waits for us to stop, and continues us when the user says `fg`. Its SIGCONT is then
                # held ready for `wait`, and passed on should it have been sent to us alone.
                os.kill(os.getpid(), signal.SIGSTOP)
            return None
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def _spawn(command: Sequence[str], environ: Mapping[str, str], mask: Iterable[int]) -> int:
    # Python ignores these two for itself; the command gets them as it would from a shell.
    defaults = (signal.SIGPIPE, signal.SIGXFSZ)
    try:
        return os.posix_spawnp(command[0], list(command), environ, setsigmask=mask, setsigdef=defaults)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without a first line that names its interpreter: shells run it themselves, and so does execvp(3).
        script = shutil.which(command[0]) or command[0]
        arguments = ["/bin/sh", script, *command[1:]]
        return os.posix_spawn("/bin/sh", arguments, environ, setsigmask=mask, setsigdef=defaults)


def _descends_from(pid: int, ancestor: int) -> bool:
    """A job that signals its own process group or its parent has not asked for the signal to come back."""
    for _ in range(64):
        if pid == ancestor:
            return True
        if pid <= 1:
            return False
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (called between signals: kept short)
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False
