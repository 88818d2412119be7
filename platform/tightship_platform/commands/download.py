"""Trace files brought from the server to this machine: whole, checked, or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tightship_platform import validation
from tightship_platform.commands.named import find_named
from tightship_platform.errors import Conflict, NotFound, TightshipError
from tightship_platform.results.capture import Capture, CapturedRank, SecondPass
from tightship_platform.results.codec import decode
from tightship_platform.results.trace_file import SECOND_PASS
from tightship_platform.units import format_bytes

if TYPE_CHECKING:
    from tightship_platform.client import ApiClient

PAGE = 50
"""Captures of a run that are looked at together for the newest with a stored trace."""


def find_capture(api: ApiClient, text: str) -> Capture:
    """The capture whose traces are meant: by its id, by that of one of its traces, or by that of a run, whose newest
    capture with a stored trace it is. It has the ranks that are meant and stored, and no others.

    :raises ApiError: the id means nothing, or several things.
    :raises NotFound: there is no stored trace.
    """
    named = find_named(api, text, "run", "capture", "trace")
    if named.kind == "run":
        capture = next((one for one in captures_of(api, named.run) if _stored(one)), None)
        if capture is None:
            raise NotFound("stored trace of run", named.run, f"see `tightship captures --run {named.run}`")
        return capture
    if named.capture is None:
        raise NotFound("capture of trace", named.id, "see `tightship trace list`")
    capture = decode(Capture, api.get(f"/captures/{named.capture}"), "capture")
    if not _stored(capture):
        why = "the files were removed because of their age" if capture.ranks else f"it is {capture.state}"
        raise NotFound("stored trace of capture", capture.capture, why)
    return capture if named.rank is None else of_rank(capture, named.rank)


def captures_of(api: ApiClient, run: str | None) -> Iterator[Capture]:
    """Captures of a run, or of all, the newest first."""
    after = None
    while True:
        page = decode(list[Capture], api.get("/captures", {"run": run, "after": after, "limit": PAGE}), "captures")
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].capture


def of_rank(capture: Capture, rank: int) -> Capture:
    """The capture with the trace of one rank alone.

    :raises NotFound: there is none.
    """
    ranks = [one for one in capture.ranks if one.rank == rank]
    if not ranks:
        there = ", ".join(str(one.rank) for one in capture.ranks)
        raise NotFound(f"rank of capture {capture.capture}", str(rank), f"it has: {there}")
    return replace(capture, ranks=ranks)


def files_of(capture: Capture) -> dict[str, tuple[CapturedRank, CapturedRank | SecondPass]]:
    """Name within a folder of every stored file of a capture → whose it is, and its size and hash."""
    key = validation.key("Capture", capture.capture)
    found: dict[str, tuple[CapturedRank, CapturedRank | SecondPass]] = {}
    for one in _stored(capture):
        name = f"{key}-rank{one.rank}.json.gz"
        found[name] = (one, one)
        if one.second_pass is not None:
            found[f"{SECOND_PASS}/{name}"] = (one, one.second_pass)
    return found


def fetch(
    api: ApiClient, trace: CapturedRank, file: CapturedRank | SecondPass, target: Path, *, force: bool = False
) -> None:
    """Bring one file here. What arrives in part, or damaged, leaves nothing behind.

    :param file: the trace itself, or its second recording.
    :param force: a file that is there already is replaced, at the end.
    :raises Conflict: there is a file already.
    :raises TightshipError: it did not arrive as it is stored, or cannot be written.
    :raises ServerUnreachable: the connection broke off.
    """
    if not force:
        require_free(target)
    is_new_folder = not target.parent.exists()
    draft = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    path = f"/traces/{trace.trace}/file" + ("?pass=2" if file is not trace else "")
    try:
        if is_new_folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("xb") as out:
            api.get_file(path, out, max_bytes=file.bytes)
        _check(draft, trace, file)
        _put(draft, target, force=force)
    except OSError as error:
        raise TightshipError(f"{str(target)!r} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
            if is_new_folder:
                target.parent.rmdir()  # which it does where nothing is in it


def require_free(target: Path) -> None:
    """Before anything is fetched.

    :raises Conflict: there is a file already.
    """
    if os.path.lexists(target):
        raise Conflict(f"{str(target)!r} exists; use --force to replace it, or name another place with -o")


def _check(draft: Path, trace: CapturedRank, file: CapturedRank | SecondPass) -> None:
    with draft.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
        size = written.tell()
    if (size, digest) != (file.bytes, file.sha256):
        raise TightshipError(
            f"The file of trace {trace.trace} did not arrive as it is stored ({format_bytes(size)} of "
            f"{format_bytes(file.bytes)}); nothing was kept, try again"
        )


def _put(draft: Path, target: Path, *, force: bool) -> None:
    if force:
        draft.replace(target)
        return
    try:
        os.link(draft, target)
    except OSError:  # another was quicker, or a filesystem without links
        require_free(target)
        draft.rename(target)


def _stored(capture: Capture) -> list[CapturedRank]:
    return [one for one in capture.ranks if one.url is not None]
