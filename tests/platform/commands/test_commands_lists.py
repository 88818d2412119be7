"""The lists, `token` and `db`: tables that say what to do next, JSON with fixed keys."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from api_calls import HOST, RUN, Served, ok, run_record, trace_file
from api_calls import Capture as CaptureCalls
from click.testing import CliRunner
from processes import tightship
from services import free_port
from sqlalchemy import delete, select

from tightship_platform.cli import root
from tightship_platform.database.models import Capture, Finding, Opportunity, Run, RunAccount, Trace, Workflow
from tightship_platform.errors import Conflict, Invalid, NotFound, SchemaMismatch, ServerUnreachable, TightshipError
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Bucket, CaptureState

LISTS = ("runs", "captures", "findings", "opportunities", "hosts", "workflows")
RUN_KEYS = {
    "run", "workflow", "team", "owner", "state", "exit_code", "start_ns", "end_ns", "devices", "steps", "device_ns",
    "account", "accounted_ns", "host", "user", "labels", "external_id", "git_commit", "git_dirty", "image",
    "torch_version", "cuda_version", "driver_version",
}  # fmt: skip
CAPTURE_KEYS = {
    "capture", "run", "workflow", "state", "reason", "requested_ns", "requested_by", "stages", "expected", "params",
    "ranks", "latency_s",
}  # fmt: skip
FINDING_KEYS = {"rule", "title", "run", "workflow", "trace", "rank", "where", "fix", "saving", "evidence", "finding"}
SAVING_KEYS = {"value", "unit", "low", "high", "method", "share_frac"}
OPPORTUNITY_KEYS = {
    "opportunity", "position", "workflow", "team", "rules", "title", "recoverable_device_ns", "low_ns", "high_ns",
    "method", "device_ns", "fix", "state", "findings",
}  # fmt: skip


@pytest.fixture
def call(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Runs a command against `served`; its output."""
    monkeypatch.setenv("TIGHTSHIP_SERVER", served.url)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(root, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    yield run


@pytest.fixture
def filled(served: Served) -> Served:
    """A run with an account, a capture, a finding and an opportunity."""
    with served.http() as http:
        capture = CaptureCalls(http)
        capture.write()
        ok(capture.put(trace_file()))
    with served.database.session() as session:
        run = session.scalars(select(Run)).one()
        trace = session.scalars(select(Trace)).one()
        workflow = session.scalars(select(Workflow)).one()
        session.add(RunAccount(run_id=run.id, bucket=Bucket.PRODUCTIVE, device_ns=30_000_000_000))
        session.add(RunAccount(run_id=run.id, bucket=Bucket.INPUT, device_ns=10_000_000_000))
        finding = Finding(
            rule="starved-input", run_id=run.id, trace_id=trace.id, title="The device waits", place="train.py:[12]",
            fix="Give the loader workers\nand more", unit="ns/step", share_frac=0.25, evidence=[], created_ns=1,
            value=5_000_000, low=4_000_000, high=6_000_000, method="bound",
        )  # fmt: skip
        session.add(finding)
        session.flush()
        session.add(
            Opportunity(
                workflow=workflow,
                key="starved-input",
                title="Feed it",
                rules=["starved-input"],
                findings=[finding.id],
                fix="Give the loader workers",
                device_ns=40_000_000_000,
                position=1,
                updated_ns=1,
                method="bound",
                value=10_000_000_000,
                low=8_000_000_000,
                high=11_000_000_000,
                state="open",
            )
        )
    return served


def words(output: str) -> str:
    return " ".join(output.split())


def test_empty_lists_say_what_to_do_next(call: Callable[..., str]) -> None:
    assert "tightship run --workflow NAME -- python train.py" in words(call("runs"))
    assert "tightship agent" in words(call("hosts"))
    assert "tightship run --workflow NAME" in words(call("workflows"))
    for command in ("runs", "captures", "findings", "hosts", "workflows"):
        for filters in (["--workflow", "none"], ["--since", "2h"], ["--label", "lr=3e-4"]):
            expected = f"See all of them with: tightship {command}"
            if (command, filters[0]) not in (("findings", "--workflow"), ("findings", "--label")):
                assert call(command, *filters) == f"Nothing matches. {expected}\n"
    assert "tightship profile WORKFLOW" in words(call("captures"))
    assert "tightship profile WORKFLOW" in words(call("findings"))
    assert "tightship findings" in words(call("opportunities"))
    for command in LISTS:
        assert json.loads(call(command, "--json")) == []


def test_json_has_the_keys_that_other_programs_rely_on(call: Callable[..., str], filled: Served) -> None:
    (run,) = json.loads(call("runs", "--json"))
    assert set(run) >= RUN_KEYS
    assert run["account"]["productive"] == 30_000_000_000
    assert set(run["account"]) <= set(Bucket)
    (capture,) = json.loads(call("captures", "--json"))
    assert set(capture) >= CAPTURE_KEYS
    assert set(capture["ranks"][0]) >= {"rank", "pid", "bytes", "sha256", "url"}
    (finding,) = json.loads(call("findings", "--json"))
    assert set(finding) >= FINDING_KEYS
    assert set(finding["saving"]) == SAVING_KEYS
    (opportunity,) = json.loads(call("opportunities", "--json"))
    assert set(opportunity) >= OPPORTUNITY_KEYS


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("runs", RUN_KEYS),
        ("captures", CAPTURE_KEYS),
        ("findings", FINDING_KEYS | SAVING_KEYS),
        ("opportunities", OPPORTUNITY_KEYS),
        ("hosts", {"host", "alive", "last_seen_ns", "devices", "sources"}),
        ("workflows", {"workflow", "team", "owner", "runs", "live", "last_start_ns", "schedule"}),
        ("samples", {"time_ns", "host", "device", "run", "metric", "value"}),
    ],
)
def test_the_help_names_every_key(command: str, keys: set[str]) -> None:
    shown = words(CliRunner().invoke(root, [command, "--help"]).output)
    assert set(re.findall(r"\w+", shown.partition("Keys:")[2])) >= keys


def test_tables_show_what_the_person_looks_for(call: Callable[..., str], filled: Served) -> None:
    runs = words(call("runs"))
    assert f"{RUN} vision red running" in runs
    assert "40.0 s so far 75.0 % 25.0 % input" in runs
    captures = words(call("captures", "--run", RUN))
    assert "vision uploaded" in captures
    assert "cli 1/1" in captures
    findings = words(call("findings"))
    for part in ("starved-input", "vision", RUN, "train.py:[12]", "5.00 ms/step", "bound", "25.0 %", "Give the loader"):
        assert part in findings
    opportunities = words(call("opportunities"))
    for part in ("1 vision starved-input", "10.0 s", "8.00 s", "11.0 s", "40.0 s", "bound", "open", "Give the loader"):
        assert part in opportunities
    assert f"{HOST} alive A processor" in words(call("hosts"))
    assert re.search(r"vision red – 1 1 \S+ \S+( \S+)? on request$", words(call("workflows")))


def test_a_table_has_one_line_per_item(call: Callable[..., str], filled: Served) -> None:
    for command in LISTS:
        lines = [line for line in call(command).splitlines() if line.strip() and not set(line) <= set(" ─━")]
        assert len(lines) == 2, lines


def test_names_cannot_steer_the_terminal(call: Callable[..., str], served: Served) -> None:
    with served.http() as http:
        ok(http.post("/runs", json=run_record(workflow="<b>[red]vision[/red] [link=x]", team="[bold]")))
    with served.database.session() as session:
        run = session.scalars(select(Run)).one()
        run.workflow.name = "a\x1b]0;owned\x07\n\x9b31m[red]\u202e\x00"[:-1]
    shown = call("runs")
    assert "[bold]" in shown
    assert r"a\x1b]0;owned\x07\n\x9b31m[red]\u202e" in shown
    assert not set(shown) & set("\x1b\x07\x9b\u202e")


def test_every_filter_reaches_the_server(call: Callable[..., str], filled: Served) -> None:
    commit = "5eed" * 10
    with filled.http() as http:
        more = {"owner": "ann", "user": "ann", "labels": {"lr": "3e-4"}, "external_id": "47", "git_commit": commit}
        ok(http.post("/runs", json=run_record(start_ns=now_ns() - 60 * NS_PER_S, **more)))
    for name, right, wrong in (
        ("--since", "1d", "2100-01-01"), ("--until", "2100-01-01", "1d"), ("--workflow", "vision", "other"),
        ("--team", "red", "blue"), ("--owner", "ann", "bob"), ("--user", "ann", "bob"), ("--host", HOST, "other"),
        ("--job-id", "47", "48"), ("--commit", "5EED5", "5eee"), ("--label", "lr=3e-4", "lr=1"),
        ("--rule", "starved-input", "recompilation"),
    ):  # fmt: skip
        for command in ("runs", "captures", "findings", "hosts", "workflows"):
            if command != "findings" or name not in ("--since", "--until"):  # found long ago
                assert len(json.loads(call(command, "--json", name, right))) == 1, (command, name)
                assert json.loads(call(command, "--json", name, wrong)) == [], (command, name)
    both = ("--label", "lr=3e-4", "--label", "lr=1")
    assert json.loads(call("runs", "--json", *both)) == []
    for command, state in (
        ("captures", "uploaded"),
        ("findings", "running"),
        ("hosts", "alive"),
        ("workflows", "running"),
    ):
        assert len(json.loads(call(command, "--json", "--state", state))) == 1


@pytest.mark.parametrize(
    "given",
    [("--since", "soon"), ("--until", "2026-13-01"), ("--label", "lr"), ("--commit", "HEAD"), ("--rule", "x y")],
)
def test_a_filter_that_is_none_is_one_line_and_exit_code_2(given: tuple[str, str]) -> None:
    """Without asking the server, which is away."""
    for command in ("runs", "captures", "findings", "hosts", "workflows"):
        result = CliRunner().invoke(root, [command, *given])
        assert isinstance(result.exception, Invalid)
        assert f"{given[1]!r}; expected" in str(result.exception)
    result = tightship(os.environ, "runs", *given)
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)


def test_filters_and_pages_go_together(call: Callable[..., str], filled: Served) -> None:
    assert json.loads(call("runs", "--json", "--workflow", "other")) == []
    assert json.loads(call("runs", "--json", "--state", "failed")) == []
    assert len(json.loads(call("runs", "--json", "--workflow", "vision", "--state", "running", "--limit", "1"))) == 1
    assert len(json.loads(call("findings", "--json", "--workflow", "vision", "--run", RUN))) == 1


@pytest.mark.parametrize(
    "arguments", [["captures", "--run", "none"], ["findings", "--run", "none"], ["samples", "--run", "none"]]
)
def test_what_is_unknown_is_one_line(call: Callable[..., str], served: Served, arguments: list[str]) -> None:
    result = CliRunner().invoke(root, arguments)
    assert isinstance(result.exception, TightshipError)
    assert "'none'; see `tightship runs`" in str(result.exception)


def test_no_finding_says_whether_there_was_a_trace_to_look_into(call: Callable[..., str], filled: Served) -> None:
    with filled.database.session() as session:
        session.execute(delete(Finding))
    for filters, target in ([], "WORKFLOW"), (["--workflow", "vision"], "vision"), (["--run", RUN], RUN):
        shown = words(call("findings", *filters))
        assert "no trace was analyzed yet" in shown
        assert shown.endswith(f"tightship profile {target}")
    with filled.database.session() as session:
        session.scalars(select(Capture)).one().state = CaptureState.ANALYZED.value
    for filters in [], ["--workflow", "vision"], ["--run", RUN]:
        assert words(call("findings", *filters)).startswith("No finding: 1 trace analyzed, and no rule found anything")


def test_a_run_that_has_just_ended_shows_no_share_before_its_account_is_complete(
    call: Callable[..., str], filled: Served
) -> None:
    with filled.database.session() as session:
        run = session.scalars(select(Run)).one()
        run.state, run.end_ns, run.steps = "finished", run.start_ns + 60_000_000_000, 15
        run.accounted_ns = run.end_ns - 1
    assert words(call("runs")).endswith("1 min 0 s – 40.0 s so far – –")
    with filled.database.session() as session:
        run = session.scalars(select(Run)).one()
        run.accounted_ns = run.end_ns
    assert re.search(r"1 min 0 s 15 \S+ \S+ \S+ % \S+ % input$", words(call("runs")))


def test_runs_fit_a_terminal_of_120_columns_with_the_largest_loss(filled: Served) -> None:
    with filled.database.session() as session:
        session.add(RunAccount(run_id=session.scalars(select(Run.id)).one(), bucket="unexplained", device_ns=10**14))
    environ = os.environ | {"TIGHTSHIP_SERVER": filled.url, "FORCE_COLOR": "1", "COLUMNS": "120"}
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in tightship(environ, "runs").stdout.splitlines()]
    assert "LARGEST LOSS" in lines[0] and "100.0 % unexplained" in lines[-1]
    assert max(map(len, lines)) <= 120


def test_no_server_is_one_line_and_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = os.environ | {"TIGHTSHIP_SERVER": f"http://127.0.0.1:{free_port()}"}
    for command in LISTS:
        result = tightship(environ, command)
        assert result.returncode == 2
        (line,) = result.stderr.strip().splitlines()
        assert "tightship up" in line
        assert result.stdout == ""
    assert issubclass(ServerUnreachable, TightshipError)


def test_a_missing_token_is_one_line_that_says_how_to_get_one(
    platform_env: Any, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    served = serve(replace(platform_env.settings, token="a-token"))
    monkeypatch.setenv("TIGHTSHIP_SERVER", served.url)
    result = CliRunner().invoke(root, ["runs"])
    assert "tightship token create" in str(result.exception)
    monkeypatch.setenv("TIGHTSHIP_TOKEN", "a-token")
    assert CliRunner().invoke(root, ["runs", "--json"]).stdout.strip() == "[]"


@pytest.mark.parametrize("url", ["http://[", "http://h:notaport", "http://", "http://a b", "ftp://x"])
def test_an_address_that_cannot_be_is_one_line(url: str) -> None:
    result = tightship(os.environ | {"TIGHTSHIP_SERVER": url}, "runs")
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1


def test_what_answers_is_no_tightship(monkeypatch: pytest.MonkeyPatch) -> None:
    import http.server
    import threading

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("TIGHTSHIP_SERVER", f"http://127.0.0.1:{server.server_port}")
    try:
        result = CliRunner().invoke(root, ["runs"])
        assert isinstance(result.exception, TightshipError)
        assert "\n" not in str(result.exception)
    finally:
        server.shutdown()
        server.server_close()


# ---- token and db ----------------------------------------------------------------------------------------------------


def run_cli(*arguments: str, **kwargs: Any) -> Any:
    return CliRunner().invoke(root, arguments, **kwargs)


def test_a_token_is_made_shown_once_listed_and_revoked(make_platform_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_platform_env(migrated=False)
    for name, value in env.variables.items():
        monkeypatch.setenv(name, value)
    made = run_cli("token", "create", "ci", "--scope", "read", "--scope", "ingest")
    secret = made.stdout.strip()
    assert secret.startswith("ts_")
    assert made.stderr == ""
    second = run_cli("token", "create", "ops", "--scope", "admin")
    assert second.stderr == ""
    listed = json.loads(run_cli("token", "list", "--json").stdout)
    assert [(t["name"], t["scopes"], t["revoked_ns"]) for t in listed] == [
        ("ci", ["ingest", "read"], None),
        ("ops", ["admin"], None),
    ]
    times = {"created_ns", "last_used_ns", "revoked_ns", "expires_ns"}
    assert set(listed[0]) == {"name", "scopes", "host", "user", "team", *times}
    assert run_cli("token", "revoke", "ci").exit_code == 0
    table = run_cli("token", "list").stdout
    assert "revoked" in table
    assert secret not in table
    assert isinstance(run_cli("token", "revoke", "nobody").exception, NotFound)
    assert isinstance(run_cli("token", "create", "ci", "--scope", "read").exception, Conflict)
    assert isinstance(run_cli("token", "create", "a\nb", "--scope", "read").exception, Invalid)
    assert isinstance(run_cli("token", "create", "x", "--scope", "everything").exception, TightshipError)
    assert isinstance(run_cli("token", "create", "x").exception, TightshipError)


def test_a_token_may_expire_and_be_rotated(platform_env: Any) -> None:
    old = run_cli("token", "create", "shift", "--scope", "read", "--expires", "30d").stdout.strip()
    assert "expires" in words(run_cli("token", "list").stdout)
    new = run_cli("token", "rotate", "shift").stdout.strip()
    assert new.startswith("ts_")
    assert new != old
    (row,) = json.loads(run_cli("token", "list", "--json").stdout)
    assert row["expires_ns"] - row["created_ns"] == 30 * 86_400 * 10**9
    for given in ("soon", "-1d", "0", "99999d"):
        for command in (("rotate", "shift"), ("create", "other", "--scope", "read")):
            assert isinstance(run_cli("token", *command, f"--expires={given}").exception, Invalid)
    assert json.loads(run_cli("token", "list", "--json").stdout) == [row]
    assert isinstance(run_cli("token", "rotate", "nobody").exception, NotFound)


def test_no_token_says_how_to_make_one(platform_env: Any) -> None:
    assert "tightship token create NAME --scope read" in words(run_cli("token", "list").stdout)


def test_db_goes_up_tells_and_goes_down(make_platform_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_platform_env(migrated=False)
    for name, value in env.variables.items():
        monkeypatch.setenv(name, value)
    before = run_cli("db", "status").exception
    assert isinstance(before, SchemaMismatch)
    assert "tightship db upgrade" in str(before)
    for _ in range(2):
        assert "this release's newest" in run_cli("db", "upgrade").stdout
    assert "this release's newest" in run_cli("db", "status").stdout
    assert run_cli("db", "downgrade", "base", input="n\n").exit_code == 1
    assert "this release's newest" in run_cli("db", "status").stdout
    assert isinstance(run_cli("db", "downgrade", "9999", "--yes").exception, Invalid)
    assert "no tightship tables" in run_cli("db", "downgrade", "base", "--yes").stdout
    assert "tightship db upgrade" in str(run_cli("db", "status").exception)
    assert "this release's newest" in run_cli("db", "upgrade").stdout


def test_passwords_of_the_database_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTSHIP_DATABASE_URL", f"postgresql+psycopg://u:secret@127.0.0.1:{free_port()}/x")
    for command in (["db", "status"], ["db", "upgrade"], ["token", "list"]):
        result = run_cli(*command)
        assert isinstance(result.exception, TightshipError)
        assert "secret" not in str(result.exception) + result.output
        assert "\n" not in str(result.exception)


def test_the_embedded_database_is_its_owners_alone(make_platform_env: Any) -> None:
    env = make_platform_env(migrated=False)
    home = env.home / "fresh"
    environ = env.environ | {"TIGHTSHIP_HOME": str(home)}
    environ.pop("TIGHTSHIP_DATABASE_URL")
    assert tightship(environ, "token", "create", "a", "--scope", "read").returncode == 0
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home, *home.iterdir())}
    assert modes["fresh"] & 0o077 == 0, modes


def test_lists_come_in_pages(call: Callable[..., str], filled: Served) -> None:
    with filled.http() as http:
        ok(http.post("/runs", json=run_record("newer")))
    [newest] = json.loads(call("runs", "--limit", "1", "--json"))
    [older] = json.loads(call("runs", "--limit", "1", "--after", newest["run"], "--json"))
    assert (newest["run"], older["run"]) == ("newer", RUN)
    assert call("runs", "--after", RUN) == f"Nothing comes after {RUN}.\n"
    for name, key in (("captures", "capture"), ("findings", "finding"), ("opportunities", "opportunity")):
        [last] = json.loads(call(name, "--limit", "1", "--json"))
        assert call(name, "--after", str(last[key])) == f"Nothing comes after {last[key]}.\n"
