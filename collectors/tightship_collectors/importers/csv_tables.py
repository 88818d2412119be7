"""Any fleet, as tables of documented columns: `runs.csv`, and `samples.csv` where activity was measured.

docs/import.md has the columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, tzinfo
from pathlib import Path

from tightship_collectors.importers.lines import Table
from tightship_collectors.importers.seen_times import SeenTimes
from tightship_collectors.importers.source import NO_NAME, HeldDevices, Options, Refused, Source, unfit_name
from tightship_collectors.importers.times import decimal_of, time_ns
from tightship_platform.results.imported import ImportedDevice, ImportedRun, ImportedSamples
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import FleetFormat, RunState

RUNS, SAMPLES = "runs.csv", "samples.csv"
RUN_COLUMNS = ("run", "start", "end")
SAMPLE_COLUMNS = ("host", "device", "time", "util_frac")
MAX_DEVICES = 100_000
SAMPLES_AT_ONCE = 20_000
MINUTE_NS = 60 * NS_PER_S
_ENDED = {state.value for state in RunState} - {RunState.RUNNING.value}
_LABEL = "label."
_NAMES = frozenset(("host", "device", "device_name", "workflow", "team", "user", "job_id"))


def open_source(path: Path, options: Options) -> Source:
    """A table of runs, or a folder with runs.csv and samples.csv.

    :raises Invalid: a table lacks a column.
    """
    refused = Refused()
    runs = Table(path / RUNS if path.is_dir() else path, RUN_COLUMNS, refused, "a table of runs", options.meter)
    samples = None
    if path.is_dir() and (path / SAMPLES).is_file():
        samples = Table(path / SAMPLES, SAMPLE_COLUMNS, refused, "a table of samples", options.meter)
    names_devices = "device" in runs.columns
    source = Source(
        format=FleetFormat.CSV, name=path.stem, items=iter(()), refused=refused, names_devices=names_devices
    )
    source.assumptions.append("a run holds its devices from its start to its end")
    source.assumptions.append("the table does not say what a run saved: all work of a run that failed counts as lost")
    if not names_devices:
        source.assumptions.append("the table does not name devices: they are only counted by run")
    if options.zone is None:
        source.assumptions.append("times without a zone are UTC; --zone says otherwise")
    source.items = _items(runs, samples, source, options.zone or UTC)
    return source


def _items(runs: Table, samples: Table | None, source: Source, zone: tzinfo) -> Iterator[ImportedRun | ImportedSamples]:
    made: dict[str, ImportedRun] = {}
    held = HeldDevices()
    for row in runs:
        source.rows += 1
        wrong = _add(row, made, held, zone, names_devices=source.names_devices)
        if wrong is not None:
            source.refused.add(runs.place, wrong[0], wrong[1])
    yield from made.values()
    if samples is not None:
        known = {(device.host, device.uuid) for run in made.values() for device in run.devices}
        yield from _samples(samples, known, source, zone)


def _add(
    row: dict[str, str], made: dict[str, ImportedRun], held: HeldDevices, zone: tzinfo, *, names_devices: bool
) -> tuple[str, str] | None:
    """Take a row; what is wrong with it, and the value."""
    run, state = row["run"], row.get("state") or RunState.UNKNOWN.value
    start_ns, end_ns = time_ns(row["start"], zone), time_ns(row["end"], zone)
    if not run.strip() or len(run) > 200 or not run.isprintable():
        return "no run", run
    if isinstance(start_ns, str):
        return start_ns, row["start"]
    if isinstance(end_ns, str):
        return end_ns, row["end"]
    if end_ns < start_ns:
        return "an end before the start", f"{row['start']} – {row['end']}"
    eligible_ns = time_ns(row["eligible"], zone) if row.get("eligible") else None
    if isinstance(eligible_ns, str):
        return eligible_ns, row["eligible"]
    if eligible_ns is not None and eligible_ns > start_ns:
        return "a start before it could start", f"{row['eligible']} – {row['start']}"
    if state not in _ENDED:
        return f"a state that is none of {', '.join(sorted(_ENDED))}", state
    count, host = row.get("devices") or "1", row.get("host", "")
    if not count.isdecimal() or len(count) > 6 or not 0 < int(count) <= MAX_DEVICES:
        return "a number of devices that cannot be", count
    unfit = unfit_name(value for name, value in row.items() if name in _NAMES or name.startswith(_LABEL))
    if unfit is not None:
        return NO_NAME, unfit
    device = row.get("device", "")
    if names_devices and not device:
        return "no device", run
    if run in made and not names_devices:
        return "a run that stands here already", run
    if names_devices and not held.take((host, device), start_ns, end_ns):
        return "a device that another row holds at this time", f"{host}/{device}"
    uuids = [device] if names_devices else [f"{run}/{number}"[:200] for number in range(int(count))]
    name = row.get("device_name") or "GPU"
    new = [ImportedDevice(host=host, uuid=uuid, name=name, spans=[[start_ns, end_ns]]) for uuid in uuids]
    if run not in made:
        made[run] = ImportedRun(
            id=run,
            workflow=row.get("workflow") or run,
            state=state,
            start_ns=start_ns,
            end_ns=end_ns,
            devices=new,
            reason=row.get("reason") or None,
            team=row.get("team") or None,
            user=row.get("user") or None,
            external_id=row.get("job_id") or None,
            eligible_ns=eligible_ns,
            labels={name[len(_LABEL) :]: value for name, value in row.items() if name.startswith(_LABEL) and value},
        )
        return None
    known = made[run]
    same = next((one for one in known.devices if (one.host, one.uuid) == (host, device)), None)
    if same is None:
        known.devices += new
    else:
        same.spans += new[0].spans
    times = [time for time in (known.eligible_ns, eligible_ns) if time is not None]
    known.eligible_ns = min(times, default=None)
    known.start_ns, known.end_ns = min(known.start_ns, start_ns), max(known.end_ns, end_ns)
    return None


def _samples(table: Table, known: set[tuple[str, str]], source: Source, zone: tzinfo) -> Iterator[ImportedSamples]:
    waiting: dict[tuple[str, str], ImportedSamples] = {}
    seen: dict[tuple[str, str], SeenTimes] = {key: SeenTimes() for key in known}
    between: Counter[int] = Counter()
    last: dict[tuple[str, str], int] = {}
    count = 0
    for row in table:
        source.rows += 1
        key, at_ns = (row["host"], row["device"]), time_ns(row["time"], zone)
        util, used = _ratio(row["util_frac"]), decimal_of(row.get("memory_used_bytes") or "0")
        if key not in known:
            source.refused.add(table.place, "a device that no run held", "/".join(key))
        elif isinstance(at_ns, str):
            source.refused.add(table.place, at_ns, row["time"])
        elif util == "":
            source.refused.add(table.place, "a utilisation below 0 or above 1", row["util_frac"])
        elif used is None or not 0 <= used <= 2**50:
            source.refused.add(table.place, "a memory use that no device has", row["memory_used_bytes"])
        elif not seen[key].add(at_ns):
            source.refused.add(table.place, "a second sample of one device and time", row["time"])
        else:
            between[abs(at_ns - last.get(key, at_ns))] += 1
            last[key] = at_ns
            empty = ImportedSamples(host=key[0], uuid=key[1], time_ns=[], util_frac=[], memory_used_bytes=[])
            one = waiting.setdefault(key, empty)
            one.time_ns.append(at_ns)
            one.util_frac.append(util if isinstance(util, float) else None)
            one.memory_used_bytes.append(int(used) if row.get("memory_used_bytes") else None)
            count += 1
            if count % SAMPLES_AT_ONCE == 0:
                yield from waiting.values()
                waiting = {}
    yield from waiting.values()
    del between[0]
    if between:
        source.interval_ns = max(min(between, key=lambda ns: (-between[ns], ns)), MINUTE_NS)
        source.assumptions.append(
            f"a sample speaks until the next one of its device, for {source.interval_ns / NS_PER_S:g} s at most"
        )


def _ratio(text: str) -> float | str | None:
    """None: it is missing; empty text: it is no ratio."""
    if not text:
        return None
    value = decimal_of(text)
    return "" if value is None or not 0 <= value <= 1 else float(value)
