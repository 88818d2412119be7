"""From complete trace files to the server: packed once, sent as often as it takes."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from tightship_collectors.kineto.manifest import Manifest, ManifestStore
from tightship_collectors.kineto.rank_process import RankProcess
from tightship_collectors.kineto.trace_file import CHUNK_BYTES, BadTrace, pack, remove_traces
from tightship_platform.client import ApiClient


class Undeliverable(Exception):
    """The traces of a capture cannot reach the server, now or later; the message says why."""


def pack_traces(manifest: Manifest, store: ManifestStore) -> None:
    """Compress what is not packed yet into the capture's folder, and remove what Kineto wrote.

    :raises Undeliverable: a trace is gone, or the disk does not hold the packed one.
    """
    for rank in manifest.ranks:
        if rank.sha256 is not None:
            continue
        try:
            fd = RankProcess(manifest, rank).open_trace()
            try:
                rank.bytes, rank.sha256 = pack(fd, store.packed(manifest, rank.rank))
            finally:
                os.close(fd)
            store.save(manifest)
        except BadTrace as error:
            raise Undeliverable(f"the trace of rank {rank.rank} is gone: {error}") from error
        except OSError as error:
            raise Undeliverable(f"the trace of rank {rank.rank} cannot be kept: {error}") from error
    remove_traces(manifest.traces_dir, manifest.uid, manifest.prefix)


def send_traces(manifest: Manifest, store: ManifestStore, client: ApiClient, host: str) -> None:
    """Upload what the server does not have yet.

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


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
