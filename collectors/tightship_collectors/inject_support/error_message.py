"""What ended a process of the job: the type and a line of its uncaught exception. Loaded by inject/sitecustomize.py.

[Note: no hook]
Python keeps an exception that nobody caught in `sys.last_value` before it calls `sys.excepthook`, and runs exit
functions after that. So an exit function can read it there: the hook stays the one that the job set, what it prints
stays what it prints, and no code of the job runs for us, neither a `__str__` nor a `__repr__`.
"""

import sys
from typing import Any, List, Set  # noqa: UP035 (it has to parse on Python 3.6)

OFF_ERROR_NS, OFF_ERROR, ERROR_BYTES = 64, 72, 1024
MAX_LINE = 500
"""Characters of one message: PyTorch's out-of-memory message has about as many."""
MAX_CHAIN = 16
"""Causes that are looked at."""


def write(control_file: Any) -> None:
    """Put it where the launcher looks once the job has ended: text first, then the time that says that there is one."""
    from struct import pack_into
    from time import time

    text = uncaught(ERROR_BYTES - 1)
    if text:
        control_file[OFF_ERROR : OFF_ERROR + ERROR_BYTES] = text.ljust(ERROR_BYTES, b"\0")
        pack_into("<Q", control_file, OFF_ERROR_NS, int(time() * 1e9))


def uncaught(size: int) -> bytes:
    """`type: message` of the exception that ended this process, with the one that began it where that is another.

    :param size: most bytes; UTF-8, cut at a character.
    :returns: empty where no exception did, or only one that is no error (Ctrl-C).
    """
    value = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(value, Exception):
        return b""
    chain = causes(value)
    text = reported(chain[0])
    if len(chain) > 1:
        text += " (after " + reported(chain[-1]) + ")"
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode("utf-8")


def causes(value: BaseException) -> List[BaseException]:  # noqa: UP006
    """The exception, what it was raised from or while handling, and so on, as a traceback shows them."""
    chain = [value]
    seen: Set[int] = {id(value)}  # noqa: UP006
    while len(chain) < MAX_CHAIN:
        last = chain[-1]
        before = last.__cause__
        if before is None and not last.__suppress_context__:
            before = last.__context__
        if before is None or id(before) in seen:
            break
        seen.add(id(before))
        chain.append(before)
    return chain


def reported(value: BaseException) -> str:
    """`module.Type: message`, as the last line of a traceback, on one line."""
    kind = type(value)
    module, name = kind.__module__, kind.__qualname__
    shown = name if module in ("builtins", "__main__") else str(module) + "." + name
    message = line_of(value)
    return shown + ": " + message if message else shown


def line_of(value: BaseException) -> str:
    """The first line of the message; where the message quotes a traceback, that one's last line, too."""
    texts = [part for part in BaseException.args.__get__(value) if type(part) is str]  # type: ignore[attr-defined]
    lines = [" ".join(line.split()) for line in texts[0][:65536].splitlines()] if texts else []
    lines = [line for line in lines if any(character.isalnum() for character in line)]
    if not lines:
        return ""
    if any("Traceback (most recent call last)" in line for line in lines):
        return cut(lines[0], MAX_LINE // 4) + " \u2026 " + cut(lines[-1], MAX_LINE * 3 // 4)
    return cut(lines[0], MAX_LINE)


def cut(text: str, most: int) -> str:
    """Not more than so many characters."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"
