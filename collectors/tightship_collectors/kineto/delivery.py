"""From complete trace files to the server: packed once, sent as often as it takes.

Both go step by step, so that one capture's large files do not hold up the others'.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from tightship_collectors.kineto.manifest import Manifest, ManifestStore
from tightship_collectors.kineto.rank_process import RankProcess
from tightship_collectors.kineto.trace_file import CHUNK_BYTES, BadTrace, pack, remove_traces
from tightship_platform.client import ApiClient
from tightship_platform.errors import TooLarge


class Undeliverable(Exception):
    """The traces of a capture cannot reach the server, now or later; the message says why."""


def pack_traces(manifest: Manifest, store: ManifestStore, *, max_bytes: int) -> Iterator[None]:
    """Compress what is not packed yet into the capture's folder, and remove what Kineto wrote.

    :param max_bytes: the largest file that is packed.
    :raises Undeliverable: a trace is gone or too large, or the disk does not hold the packed one.
    """
    for rank in manifest.ranks:
        if rank.sha256 is not None:
            continue
        try:
            fd = RankProcess(manifest, rank).open_trace()
            try:
                target = store.packed(manifest, rank.rank)
                rank.bytes, rank.sha256 = yield from pack(fd, target, max_bytes=max_bytes)
            finally:
                os.close(fd)
            store.save(manifest)
        except BadTrace as error:
            raise Undeliverable(f"the trace of rank {rank.rank} is gone: {error}") from error
        except TooLarge as error:
            raise Undeliverable(f"the trace of rank {rank.rank} is too large: {error}") from error
        except OSError as error:
            why = error.strerror or error
            raise Undeliverable(f"the trace of rank {rank.rank} cannot be kept: {why}") from error
        yield
    remove_traces(manifest.traces_dir, manifest.uid, manifest.prefix)


def send_traces(manifest: Manifest, store: ManifestStore, client: ApiClient, host: str) -> Iterator[None]:
    """Upload what the server does not have yet, a file at each step.

    :raises ServerUnreachable, ApiError: as the client; what was stored so far stays stored.
    :raises Undeliverable: a packed file is gone.
    """
    for rank in manifest.ranks:
        if rank.stored:
            continue
        path = store.packed(manifest, rank.rank)
        if rank.sha256 is None or not path.is_file():
            raise Undeliverable(f"the packed trace of rank {rank.rank} is gone")
        query = urllib.parse.urlencode(
            {"pid": rank.pid, "host": host, "attempt": manifest.attempt, "pass": 2 if manifest.is_second else 1}
        )
        client.put_stream(
            f"/captures/{manifest.capture}/traces/{rank.rank}?{query}",
            _chunks(path),
            {"content-length": str(path.stat().st_size), "x-sha256": rank.sha256},
        )
        rank.stored = True
        store.save(manifest)
        yield


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
