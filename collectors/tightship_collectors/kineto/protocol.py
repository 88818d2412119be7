"""The datagrams between libkineto and its daemon: strict decoding, exact encoding.

[Note: datagram layout]
Little-endian `u64 size`, `char[32] type` (NUL-terminated), then `size` bytes of payload. The job sends `ctxt` (a
process introduces itself: `i32 gpu, i32 pid, i64 job`) and `req` (it polls for a config: `i32 kinds, i32 n, i64 job,
i32 pids[n]`, the sender first, then its ancestors). The daemon answers a datagram of the same type: the number of
registered processes, or the config text, empty when there is nothing to do.
Source: libkineto/src/IpcFabricConfigClient.cpp and dynolog's ipcfabric, checked against torch 2.13.

Everything decoded here comes from processes that are not ours: whatever deviates from the layout is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_HEADER = struct.Struct("<Q32s")
_CTXT = struct.Struct("<iiq")
_REQ = struct.Struct("<iiq")

MAX_ANCESTORS = 64
"""libkineto sends up to 11 process ids; more than this is refused."""
MAX_DATAGRAM = _HEADER.size + _REQ.size + 4 * MAX_ANCESTORS
"""Bytes of the largest datagram that a job has reason to send."""
MAX_CONFIG_BYTES = 8192

ACTIVITIES = 2
"""Bit of `kinds` that a process sets while it could start a trace; clear while it takes one."""


class Malformed(ValueError):
    """A datagram that no libkineto sends."""


@dataclass(frozen=True)
class Registration:
    """A process introduces itself and the device it uses."""

    gpu: int
    pid: int
    job: int


@dataclass(frozen=True)
class Poll:
    """A process asks whether there is something to record."""

    kinds: int
    job: int
    """SLURM_JOB_ID of the process, or 0."""
    pids: tuple[int, ...]
    """The claimed process ids: the sender first, then its ancestors."""

    @property
    def idle(self) -> bool:
        """The process could start a trace now; false while it takes one, ours or its own."""
        return bool(self.kinds & ACTIVITIES)


def decode(datagram: bytes) -> Registration | Poll:
    """Read what a job sent.

    :raises Malformed: the bytes deviate from [Note: datagram layout] in any way.
    """
    if len(datagram) < _HEADER.size or len(datagram) > MAX_DATAGRAM:
        raise Malformed(f"{len(datagram)} bytes")
    size, raw_type = _HEADER.unpack_from(datagram)
    payload = datagram[_HEADER.size :]
    if size != len(payload):
        raise Malformed(f"size field {size}, payload {len(payload)} bytes")
    kind, terminator, _ = raw_type.partition(b"\0")
    if not terminator:
        raise Malformed("type without end")
    if kind == b"ctxt":
        if len(payload) != _CTXT.size:
            raise Malformed(f"ctxt of {len(payload)} bytes")
        gpu, pid, job = _CTXT.unpack(payload)
        if pid <= 0:
            raise Malformed(f"ctxt of process {pid}")
        return Registration(gpu, pid, job)
    if kind == b"req":
        return _decode_poll(payload)
    raise Malformed(f"type {kind!r}")


def _decode_poll(payload: bytes) -> Poll:
    if len(payload) < _REQ.size:
        raise Malformed(f"req of {len(payload)} bytes")
    kinds, count, job = _REQ.unpack_from(payload)
    if not 1 <= count <= MAX_ANCESTORS or len(payload) != _REQ.size + 4 * count:
        raise Malformed(f"req with {count} process ids in {len(payload)} bytes")
    pids = struct.unpack_from(f"<{count}i", payload, _REQ.size)
    if min(pids) < 0 or pids[0] == 0:
        raise Malformed(f"req with process id {min(pids)}")
    return Poll(kinds, job, pids)


def encode_registered(count: int) -> bytes:
    """The answer to a `ctxt`: how many processes of the run have introduced themselves."""
    return _HEADER.pack(4, b"ctxt") + struct.pack("<i", count)


def encode_config(text: bytes) -> bytes:
    """The answer to a `req`: the config text without a terminator; empty means nothing to do."""
    if len(text) > MAX_CONFIG_BYTES:
        raise ValueError(f"a config of {len(text)} bytes")
    return _HEADER.pack(len(text), b"req") + text
