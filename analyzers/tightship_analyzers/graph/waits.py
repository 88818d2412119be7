"""What the host and the streams wait for.

A trace names the calls (`cudaStreamSynchronize`, `cudaStreamWaitEvent`) but only with CUPTI's synchronization records
(`cuda_sync`) does it say on what they waited. Without them a call's target is taken from the order of calls and checked
against the times: what had not ended when a call returned was not waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightship_analyzers.graph.streams import CLOCK_NS, Streams
from tightship_analyzers.trace.columns import Bools, Int64s
from tightship_analyzers.trace.copy_memory import CopyMemory
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.runtime_calls import GRAPH_LAUNCH, Blocks, what_blocks

RETURN_NS = 100_000
"""A call that waits returns within this time after the device has finished; longer is not explained by the wait.
Waking a sleeping thread takes 5–50 µs on the reference traces."""
FULL_QUEUE = 512
"""A launch can only be held up by a full queue when this many events wait. CUDA's queue takes 1024 launches; streams
and copies have their own queues."""
WAITING = (Blocks.DEVICE, Blocks.STREAM, Blocks.EVENT, Blocks.FREE)
LONG_LAUNCH_NS = 30_000
"""A launch takes 3–10 µs; one that waits for room in the queue takes as long as a kernel."""


@dataclass(frozen=True, slots=True, eq=False)
class HostWaits:
    """Runtime calls that may hold the host."""

    call: Int64s
    """(calls,) rows in `Trace.launches`."""
    own_ns: Int64s
    """(calls,) what a call takes without waiting."""
    place: Int64s
    """(waits,) of the call in `call`; a call has a wait per stream that it waits for, or none."""
    event: Int64s
    """(waits,) row in `Trace.device_events`."""
    of_start: Bools
    """(waits,) until the event starts, not until it ends: a full queue, or a copy from pageable memory."""
    queue: Bools
    """(waits,) because the queue was full."""
    lag_ns: Int64s
    """(waits,) from the event to the call's return, as far as it is plausible."""
    excess_ns: Int64s
    """(waits,) what is not."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamWaits:
    """A device event that starts only after one of another stream has ended."""

    src: Int64s
    dst: Int64s
    """(waits,) rows in `Trace.device_events`."""
    contradicted: int
    """Waits in the trace that the times contradict."""


def host_waits(trace: Trace, streams: Streams) -> HostWaits:
    """All calls that may wait, and for what."""
    events = trace.device_events
    blocks = what_blocks(trace)
    pairs: list[tuple[Int64s, Int64s, bool, bool]] = []
    for calls, wanted in _by_name(trace, streams, blocks):
        pairs.append((calls, wanted, False, False))
    copies, staged = _blocking_copies(trace, streams, blocks)
    pairs.append((events.launch[copies], copies, False, False))
    pairs.append((events.launch[staged], staged, True, False))
    full, taken = _full_queue(trace, streams, blocks)
    pairs.append((full, taken, True, True))

    call = np.concatenate([calls for calls, *_ in pairs])
    event = np.concatenate([wanted for _, wanted, *_ in pairs])
    of_start = np.concatenate([np.full(len(calls), start) for calls, _, start, _ in pairs])
    queue = np.concatenate([np.full(len(calls), queued) for calls, *_, queued in pairs])
    begun = events.start_ns[event] <= trace.launches.end_ns[call]  # else nobody can have waited for it
    call, event, of_start, queue = call[begun], event[begun], of_start[begun], queue[begun]
    named = np.isin(blocks, WAITING)
    rows, place = np.unique(np.append(np.flatnonzero(named), call), return_inverse=True)
    place = place[int(named.sum()) :]
    until = np.where(of_start, events.start_ns[event], events.end_ns[event])
    own, lag, excess = _lags(trace, rows, place, until, of_start & ~queue)
    return HostWaits(
        call=rows, own_ns=own, place=place, event=event, of_start=of_start, queue=queue, lag_ns=lag, excess_ns=excess
    )


def _by_name(trace: Trace, streams: Streams, blocks: np.ndarray) -> list[tuple[Int64s, Int64s]]:
    """(calls, events) of the calls that wait by what they are."""
    launches, events = trace.launches, trace.device_events
    calls = np.flatnonzero(np.isin(blocks, WAITING))
    if not len(calls) or not streams.all:
        return []
    begin, latest = launches.start_ns[calls], launches.end_ns[calls] + CLOCK_NS
    everything = np.isin(blocks[calls], (Blocks.DEVICE, Blocks.FREE))
    current = _stream_of_last_launch(trace, streams, calls)
    found: list[tuple[Int64s, Int64s]] = []
    ended = np.full(len(calls), np.iinfo(np.int64).min)
    latest_row, current_row = np.full(len(calls), -1, dtype=np.int64), np.full(len(calls), -1, dtype=np.int64)
    for place, stream in streams.busiest:
        # The last event of the stream that each call can have waited for; what is a guess is none against the clock.
        row = stream.last(begin, np.where(everything, latest, launches.end_ns[calls]))
        known = everything & (row >= 0)
        found.append((calls[known], row[known]))
        end = np.where(row >= 0, events.end_ns[row], np.iinfo(np.int64).min)
        later = end > ended
        latest_row[later], ended[later] = row[later], end[later]
        current_row[current == place] = row[current == place]
    known_waits, wanted = _recorded(trace, streams, calls, begin, latest)
    known = ~everything & known_waits & (wanted >= 0)
    found.append((calls[known], wanted[known]))
    # Not recorded: what ended last while the call lasted; else a synchronized stream is the one last launched on.
    waited = ended > begin
    wanted = np.where(waited, latest_row, np.where(blocks[calls] == Blocks.STREAM, current_row, -1))
    known = ~everything & ~known_waits & (wanted >= 0)
    found.append((calls[known], wanted[known]))
    return found


def _recorded(
    trace: Trace, streams: Streams, calls: Int64s, begin_ns: Int64s, latest_ns: Int64s
) -> tuple[Bools, Int64s]:
    """Which calls a synchronization record explains, and the event that each waits for (-1: none launched)."""
    syncs, launches = trace.syncs, trace.launches
    known_waits, wanted = np.zeros(len(calls), dtype=np.bool_), np.full(len(calls), -1, dtype=np.int64)
    record_of = {corr: row for row, corr in enumerate(syncs.correlation.tolist()) if corr > 0}
    if not record_of:
        return known_waits, wanted
    place_of = _by_correlation(trace)
    for place, corr in enumerate(launches.correlation[calls].tolist()):
        record = record_of.get(corr)
        if record is None:
            continue
        on = int(syncs.wait_stream[record]) if syncs.wait_stream[record] >= 0 else int(syncs.stream[record])
        stream = streams.find(int(syncs.device[record]), on)
        if stream is None:
            continue
        marked = place_of.get(int(syncs.wait_record[record]))
        before = launches.start_ns[marked] if marked is not None else begin_ns[place]
        known_waits[place] = True
        wanted[place] = stream.last(np.array([before]), latest_ns[place : place + 1])[0]
    return known_waits, wanted


def _by_correlation(trace: Trace) -> dict[int, int]:
    """Correlation → row in `Trace.launches`."""
    return {corr: row for row, corr in enumerate(trace.launches.correlation.tolist()) if corr > 0}


def _stream_of_last_launch(trace: Trace, streams: Streams, calls: Int64s) -> Int64s:
    """(calls,) place of the stream that the calling thread last launched on; -1 for none."""
    events, launches = trace.device_events, trace.launches
    linked = np.flatnonzero(streams.linked)
    tid = launches.tid[events.launch[linked]]
    current = np.full(len(calls), -1, dtype=np.int64)
    for thread in numbers_in(launches.tid[calls]).tolist():
        mine = linked[tid == thread]
        mine = mine[np.argsort(streams.launched_ns[mine], kind="stable")]
        asked = np.flatnonzero(launches.tid[calls] == thread)
        place = np.searchsorted(streams.launched_ns[mine], launches.start_ns[calls[asked]], side="left") - 1
        known = place >= 0
        current[asked[known]] = streams.index[mine[place[known]]]
    return current


def _blocking_copies(trace: Trace, streams: Streams, blocks: np.ndarray) -> tuple[Int64s, Int64s]:
    """Rows of copies whose call returned with the copy's end, and of those whose call returned only after the copy
    could start, because its source is pageable memory that had to be staged."""
    events, launches = trace.device_events, trace.launches
    memory = CopyMemory.of(trace, events)
    rows = np.flatnonzero(streams.linked & memory.holds_host)
    by_call = np.flatnonzero(streams.linked)
    by_call = by_call[blocks[events.launch[by_call]] == Blocks.COPY]
    rows = np.union1d(rows, by_call)
    begin, end = launches.start_ns[events.launch[rows]], launches.end_ns[events.launch[rows]]
    started = events.start_ns[rows] <= end + CLOCK_NS
    whole = started & (events.end_ns[rows] <= end + np.where(memory.to_device[rows], RETURN_NS, CLOCK_NS))
    before = streams.before[rows]
    held = (before >= 0) & (events.end_ns[before] > begin)
    staged = started & ~whole & held
    return rows[whole], rows[staged]


def _full_queue(trace: Trace, streams: Streams, blocks: np.ndarray) -> tuple[Int64s, Int64s]:
    """Launches that took long while the queue was full, and the event whose start made room. Launching a graph takes
    long by nature."""
    events, launches = trace.device_events, trace.launches
    slow = streams.linked.copy()
    slow[streams.linked] = launches.dur_ns[events.launch[streams.linked]] > LONG_LAUNCH_NS
    rows = np.flatnonzero(slow)
    rows = rows[blocks[events.launch[rows]] == Blocks.NOTHING]
    rows = rows[~trace.names.mask(launches.name[events.launch[rows]], matcher(GRAPH_LAUNCH))]
    calls, where = np.unique(events.launch[rows], return_index=True)
    rows = rows[where]
    held_calls, held_events = [], []
    for device in np.unique(events.device[rows]).tolist():
        own = np.flatnonzero((events.device == device) & streams.linked)
        mine = np.flatnonzero(events.device[rows] == device)
        begin, end = launches.start_ns[calls[mine]], launches.end_ns[calls[mine]]
        # A call that launches several events, a graph, is one operation in the queue, until its first one starts.
        queued, first = np.unique(events.launch[own], return_index=True)
        launched, started = np.sort(launches.start_ns[queued]), np.sort(events.start_ns[own[first]])
        waiting = np.searchsorted(launched, begin) - np.searchsorted(started, begin, side="right")
        taken = own[np.maximum(np.searchsorted(events.start_ns[own], end, side="right") - 1, 0)]
        held = (waiting >= FULL_QUEUE) & (events.start_ns[taken] > begin) & (streams.launched_ns[taken] < begin)
        held_calls.append(calls[mine[held]])
        held_events.append(taken[held])
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *held_calls]), np.concatenate([none, *held_events])


def _lags(trace: Trace, rows: Int64s, place: Int64s, until_ns: Int64s, staged: Bools) -> tuple[Int64s, Int64s, Int64s]:
    """Each call's own time; each wait's return time as far as plausible (a copy is staged as long as it takes), and
    the rest of it."""
    launches = trace.launches
    begin, end = launches.start_ns[rows], launches.end_ns[rows]
    latest = np.full(len(rows), np.iinfo(np.int64).min)
    np.maximum.at(latest, place, until_ns)
    waited = latest > begin
    own = end - begin
    left = np.maximum(end - np.where(waited, latest, begin), 0)
    for name in numbers_in(launches.name[rows[waited]]).tolist():
        same = launches.name[rows] == name
        free = own[same & ~waited]
        typical = int(np.median(free)) if len(free) else np.iinfo(np.int64).max
        own[same & waited] = np.minimum(left[same & waited], typical)
    returned = end[place] - until_ns
    binding = waited[place] & (until_ns == latest[place])
    usual = int(np.median(np.minimum(returned[binding], RETURN_NS))) if binding.any() else 0
    lag = np.minimum(returned, np.where(staged, returned, np.where(binding, RETURN_NS, usual)))
    excess = np.where(binding, returned - lag, 0)
    return own, lag, excess


def stream_waits(trace: Trace, streams: Streams) -> StreamWaits:
    """Waits between streams: recorded ones, else those that the order of calls shows."""
    recorded = np.flatnonzero(trace.names.mask(trace.syncs.name, lambda name: name == "Stream Wait Event"))
    src, dst = _recorded_waits(trace, streams, recorded) if len(recorded) else _ordered_waits(trace, streams)
    known = (src >= 0) & (dst >= 0)
    src, dst = src[known], dst[known]
    events = trace.device_events
    possible = events.end_ns[src] <= events.start_ns[dst] + CLOCK_NS
    pair = np.unique(np.stack((dst[possible], src[possible])), axis=1)
    return StreamWaits(src=pair[1], dst=pair[0], contradicted=int((~possible).sum()) if len(recorded) else 0)


def _recorded_waits(trace: Trace, streams: Streams, records: Int64s) -> tuple[Int64s, Int64s]:
    syncs, launches = trace.syncs, trace.launches
    place_of, src, dst = _by_correlation(trace), [], []
    for record in records.tolist():
        device = int(syncs.device[record])
        waiting = streams.find(device, int(syncs.stream[record]))
        other = streams.find(device, int(syncs.wait_stream[record]))
        call = place_of.get(int(syncs.correlation[record]))
        if waiting is None or other is None or call is None:
            continue
        marked = place_of.get(int(syncs.wait_record[record]), call)
        src.append(int(other.last(launches.start_ns[marked : marked + 1])[0]))
        dst.append(int(waiting.first_from(launches.start_ns[call : call + 1])[0]))
    return np.array(src, dtype=np.int64), np.array(dst, dtype=np.int64)


def _ordered_waits(trace: Trace, streams: Streams) -> tuple[Int64s, Int64s]:
    """The next event that the calling thread launches waits for what was last launched on another stream: of several
    streams the one that ended last, and only if it had ended."""
    events, launches = trace.device_events, trace.launches
    none = np.empty(0, dtype=np.int64)
    calls = np.flatnonzero(what_blocks(trace) == Blocks.STREAM_WAIT)
    if not len(calls) or len(streams.all) < 2:
        return none, none
    linked = np.flatnonzero(streams.linked)
    tid = launches.tid[events.launch[linked]]
    dst = np.full(len(calls), -1, dtype=np.int64)
    for thread in numbers_in(launches.tid[calls]).tolist():
        mine = linked[tid == thread]
        mine = mine[np.lexsort((events.start_ns[mine], streams.launched_ns[mine]))]
        asked = np.flatnonzero(launches.tid[calls] == thread)
        place = np.searchsorted(streams.launched_ns[mine], launches.end_ns[calls[asked]], side="left")
        known = place < len(mine)
        dst[asked[known]] = mine[place[known]]
    calls, dst = calls[dst >= 0], dst[dst >= 0]
    src, ended = np.full(len(calls), -1, dtype=np.int64), np.full(len(calls), np.iinfo(np.int64).min)
    for number, stream in streams.busiest:
        last = stream.last(launches.start_ns[calls])
        end = events.end_ns[last]
        fits = (last >= 0) & (streams.index[dst] != number) & (stream.device == events.device[dst])
        fits &= (end <= events.start_ns[dst] + CLOCK_NS) & (end > ended)
        src[fits], ended[fits] = last[fits], end[fits]
    return src, dst
