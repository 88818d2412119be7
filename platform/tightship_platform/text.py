"""Text from a traced program, made fit to store and to show: bounded, and nothing that steers a terminal or breaks a
database (control characters, NUL, lone surrogates)."""

from __future__ import annotations

MAX_CHARS = 200


def shown(text: str, limit: int = MAX_CHARS) -> str:
    """The text with `?` for what cannot be printed, cut to `limit` characters with an ellipsis."""
    clean = text[: limit + 1]
    if not clean.isprintable():
        clean = "".join(c if c.isprintable() else "?" for c in clean)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def printable(text: object) -> str:
    """The text with everything that could steer a terminal made visible."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def label(name: str, room: int) -> str:
    """A name in `room` characters: without the types of a kernel's result and arguments, cut in the middle.

    Instances of one template differ at the end, so that the end has to stay.
    """
    name = _without_arguments(name).removeprefix("void ")
    if len(name) <= room:
        return name
    head = (room - 1) // 2
    return f"{name[:head]}…{name[head + 1 - room :]}"


def _without_arguments(name: str) -> str:
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, 0, -1):
        depth += (name[place] == ")") - (name[place] == "(")
        if not depth:
            # `(anonymous namespace)` and the like are parts of names, copies tell their direction in words.
            return name if name[place - 1] in " :" else name[:place]
    return name
