"""The table of `tightship account`: waits and goodput, where they are known."""

from __future__ import annotations

from dataclasses import replace

from tightship_platform.commands.account import _goodput
from tightship_platform.commands.list_tables import accounts
from tightship_platform.results.fleet import AccountGroup, Goodput

HOUR = 3600 * 10**9
GROUP = AccountGroup(
    key="live",
    runs=1,
    devices=1,
    device_ns=HOUR,
    unproductive_ns=HOUR // 2,
    busy_ns=None,
    idle_ns=None,
    unmeasured_ns=HOUR,
    buckets={"productive": HOUR // 2, "lost": HOUR // 2},
)


def test_waits_have_a_column_where_any_is_known() -> None:
    assert "WAITED" not in [column.name for column in accounts([GROUP]).columns]
    known = accounts([replace(GROUP, waiting_ns=2 * HOUR, waiting_runs=1), GROUP])
    at = [column.name for column in known.columns].index("WAITED")
    assert [row[at] for row in known.rows] == ["2.00 h", "–"]
    assert all(len(row) == len(known.columns) for row in known.rows)
    assert known.rows[0][-1] == "50.0 % lost"


def test_goodput_says_which_ratios_are_known() -> None:
    some = Goodput(scheduling_frac=0.8, runtime_frac=0.75, program_frac=None, goodput_frac=None)
    every = replace(some, program_frac=0.25, goodput_frac=0.15)
    assert _goodput(some) == "goodput unknown = scheduling 80.0 % × runtime 75.0 % × program unknown"
    assert _goodput(every) == "goodput at least 15.0 % = scheduling 80.0 % × runtime 75.0 % × program 25.0 %"
