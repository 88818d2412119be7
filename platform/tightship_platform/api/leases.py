"""Agents take captures and requests for stacks, and wait for them."""

from __future__ import annotations

import time

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from tightship_platform import captures
from tightship_platform.api.auth import reporter
from tightship_platform.api.polls import LOOK_S, Polls
from tightship_platform.api.reply import Answer, count_request
from tightship_platform.captures import stacks
from tightship_platform.database.engine import Database
from tightship_platform.wire import MAX_LEASE_WAIT_S, LeaseRequest, Leases

AT_ONCE_S = 5 * LOOK_S
"""Who waits for less than this is answered from the database first."""


async def answer_lease(request: Request, body: LeaseRequest, polls: Polls, database: Database) -> Answer:
    """Captures, and requests for stacks, for the caller of this request; with `wait_s` it waits for one.

    :param request: its body has been read.
    :raises Invalid: the request names something that cannot be.
    :raises Conflict: captures wait, but all of them for runs of other hosts.
    :raises Forbidden: captures wait, and the caller may not speak for the host.
    """
    count_request(request, body.host)
    captures.check_lease(body)
    wait_s = min(body.wait_s, MAX_LEASE_WAIT_S)
    until_s = time.monotonic() + wait_s
    # Who waits for long sees what is there already with the next look that is made for all.
    leases = await run_in_threadpool(_lease, database, body) if wait_s < AT_ONCE_S else Leases(leases=[])
    while not (leases.leases or leases.stacks) and (left_s := until_s - time.monotonic()) > 0:
        if not await polls.wait(request, set(body.runs), left_s):
            break
        leases = await run_in_threadpool(_lease, database, body)
    return Answer(leases)


def _lease(database: Database, body: LeaseRequest) -> Leases:
    with database.session() as session:
        wanted = stacks.take(session, body.runs, body.host, reporter=reporter())
        return Leases(leases=captures.lease(session, body, reporter=reporter()), stacks=wanted)
