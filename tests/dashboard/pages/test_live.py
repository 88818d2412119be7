"""What did not change is not sent."""

from __future__ import annotations

from dash import html, no_update

from tightship_dashboard.pages.live import changed, changed_rows, digests


def test_only_changed_parts_are_sent() -> None:
    shown = digests({"a": html.P("1"), "b": html.P("2")})
    sent, seen = changed({"a": html.P("1"), "b": html.P("3")}, shown)
    assert sent[0] is no_update
    assert sent[1].children == "3"
    assert changed({"a": html.P("1"), "b": html.P("3")}, seen) == ([no_update, no_update], no_update)


def test_a_part_that_was_not_looked_at_stays() -> None:
    shown = digests({"a": html.P("1"), "b": html.P("2")})
    sent, seen = changed({"a": no_update, "b": html.P("3")}, shown)
    assert sent[0] is no_update
    assert seen["a"] == shown["a"]
    assert changed({"a": no_update, "b": html.P("3")}, seen) == ([no_update, no_update], no_update)


def test_a_browser_that_knows_nothing_or_sends_rubbish_gets_everything() -> None:
    for rubbish in (None, [], "x", {"a": 1}):
        sent, seen = changed({"a": html.P("1")}, rubbish)
        assert sent[0].children == "1"
        assert set(seen) == {"a"}


def test_rows_that_are_new_or_differ_are_sent_and_those_that_went_are_named() -> None:
    rows = [{"id": "1", "v": 1}, {"id": "2", "v": 2}]
    everything, shown = changed_rows(rows, {})
    assert everything == {"rows": rows, "gone": []}
    fresh, shown = changed_rows([{"id": "2", "v": 3}, {"id": "4", "v": 4}], shown)
    assert fresh == {"rows": [{"id": "2", "v": 3}, {"id": "4", "v": 4}], "gone": ["1"]}
    assert changed_rows([{"id": "2", "v": 3}, {"id": "4", "v": 4}], shown) == (no_update, no_update)
