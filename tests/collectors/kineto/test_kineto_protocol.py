"""Kineto's datagrams: what a real torch sends is understood, and nothing else is."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tightship_collectors.kineto.protocol import (
    MAX_ANCESTORS,
    MAX_CONFIG_BYTES,
    Malformed,
    Poll,
    Registration,
    decode,
    encode_config,
    encode_registered,
)

# Recorded from torch 2.13.0: an idle process with five ancestors.
RECORDED = bytes.fromhex(
    "2800000000000000"
    "7265710000000000000000000000000000000000000000000000000000000000"
    "0300000006000000"
    "0000000000000000"
    "912b00008e2b0000882b0000872b0000071e0000061e0000"
)


def datagram(kind: bytes, payload: bytes, *, size: int | None = None) -> bytes:
    return struct.pack("<Q32s", len(payload) if size is None else size, kind) + payload


def poll_payload(*pids: int, kinds: int = 3, count: int | None = None, job: int = 0) -> bytes:
    return struct.pack("<iiq", kinds, len(pids) if count is None else count, job) + struct.pack(f"<{len(pids)}i", *pids)


def test_a_recorded_poll_is_understood() -> None:
    assert decode(RECORDED) == Poll(kinds=3, job=0, pids=(11153, 11150, 11144, 11143, 7687, 7686))


def test_a_busy_process_is_distinguished_from_an_idle_one() -> None:
    idle, busy = (decode(datagram(b"req", poll_payload(7, kinds=kinds))) for kinds in (3, 1))
    assert isinstance(idle, Poll)
    assert isinstance(busy, Poll)
    assert (idle.idle, busy.idle) == (True, False)


def test_a_registration_is_understood() -> None:
    assert decode(datagram(b"ctxt", struct.pack("<iiq", 1, 42, 777))) == Registration(gpu=1, pid=42, job=777)


def test_the_type_may_be_followed_by_anything_behind_its_end() -> None:
    assert isinstance(decode(datagram(b"req\0rubbish", poll_payload(7))), Poll)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        RECORDED[:39],
        RECORDED[:-1],
        RECORDED + b"\0",
        datagram(b"req", poll_payload(7), size=2**63),
        datagram(b"r" * 32, poll_payload(7)),
        datagram(b"exec", poll_payload(7)),
        datagram(b"req", b""),
        datagram(b"req", poll_payload(count=0)),
        datagram(b"req", poll_payload(7, count=-1)),
        datagram(b"req", poll_payload(7, count=2**31 - 1)),
        datagram(b"req", poll_payload(7, 8, count=1)),
        datagram(b"req", poll_payload(*range(1, MAX_ANCESTORS + 2))),
        datagram(b"req", poll_payload(-7)),
        datagram(b"req", poll_payload(0)),
        datagram(b"ctxt", struct.pack("<iiq", 0, -1, 0)),
        datagram(b"ctxt", struct.pack("<iiqi", 0, 5, 0, 0)),
        datagram(b"ctxt", b""),
    ],
)
def test_whatever_no_libkineto_sends_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(data)


@given(st.binary(max_size=600) | st.binary(max_size=80).map(lambda tail: RECORDED[:44] + tail))
@example(RECORDED)
def test_no_bytes_make_it_fail_otherwise(data: bytes) -> None:
    try:
        message = decode(data)
    except Malformed:
        return
    assert isinstance(message, Poll | Registration)


@given(st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=MAX_ANCESTORS), st.integers(0, 2**62))
def test_every_poll_comes_back_as_sent(pids: list[int], job: int) -> None:
    assert decode(datagram(b"req", poll_payload(*pids, job=job))) == Poll(3, job, tuple(pids))


def test_answers_have_the_layout_that_libkineto_reads() -> None:
    assert encode_config(b"A=1\n") == struct.pack("<Q32s", 4, b"req") + b"A=1\n"
    assert encode_config(b"") == struct.pack("<Q32s", 0, b"req")
    assert encode_registered(3) == struct.pack("<Q32si", 4, b"ctxt", 3)


def test_a_config_of_absurd_size_is_never_sent() -> None:
    with pytest.raises(ValueError, match="config of"):
        encode_config(b"x" * (MAX_CONFIG_BYTES + 1))
