"""A server on loopback is one user's: their programs and browser get in by themselves, nobody else here does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_calls import Served, ok, refused, run_record
from processes import at_once, tightship
from waiting import PATIENCE_S

from tightship_platform.api.auth import create_token
from tightship_platform.client import ApiClient, ApiError
from tightship_platform.errors import Invalid, TokenWithheld
from tightship_platform.processes import login_codes
from tightship_platform.processes.login_codes import CODE_S, login_link, make_code, take_code
from tightship_platform.token_file import (
    credentials,
    listening_users,
    local_token_path,
    make_token,
    new_token,
    write_token,
)
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import Scope

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
STRANGER = 4242
"""Another user of this machine."""


@contextmanager
def stranger(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Python of the other user, who may not be able to read the standard library."""
    begin = "import encodings.idna, http.client, json, os, socket, sys, urllib.error, urllib.request\n"
    begin += f"os.chdir('/')\nos.setgroups([])\nos.setgid({STRANGER})\nos.setuid({STRANGER})\n"
    command = [sys.executable, "-I", "-S", "-c", begin + code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def answer_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


# ---- the token -------------------------------------------------------------------------------------------------------


def test_the_token_is_made_once_and_is_its_users_alone(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    made = make_token(local_token_path(home))
    assert make_token(local_token_path(home)) == made
    assert made.startswith("ts_") and len(made) > 40
    assert local_token_path(home).stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in home.iterdir()] == ["token"]


def test_of_many_who_make_it_at_once_one_does(tmp_path: Path) -> None:
    imports = "from pathlib import Path\nfrom tightship_platform.token_file import local_token_path, make_token"
    done = at_once(
        imports, "os.write(1, make_token(local_token_path(Path(sys.argv[1]))).encode() + b'\\n')", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [local_token_path(tmp_path).read_text().strip()] * 4


@pytest.mark.parametrize("change", ["readable", "link", "folder", "text", "other"])
def test_a_token_that_others_could_know_is_one_line_and_stays(tmp_path: Path, change: str) -> None:
    path = local_token_path(tmp_path)
    if change == "readable":
        write_token(path, "a-token")
        path.chmod(0o640)
    elif change == "link":
        write_token(tmp_path / "elsewhere", "a-token")
        path.symlink_to(tmp_path / "elsewhere")
    elif change == "folder":
        path.mkdir()
    elif change == "text":
        path.write_text("two words")
        path.chmod(0o600)
    elif os.geteuid() == 0:
        write_token(path, "a-token")
        os.chown(path, STRANGER, STRANGER)
    else:
        pytest.skip("only root can give a file away")
    with pytest.raises(Invalid, match="Token file") as refusal:
        make_token(local_token_path(tmp_path))
    assert "\n" not in str(refusal.value)
    assert path.exists()


def test_a_home_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "home"):
        with pytest.raises(Invalid, match="Token file"):
            make_token(local_token_path(home))
        with pytest.raises(Invalid):
            make_code(home)


# ---- programs --------------------------------------------------------------------------------------------------------


def test_a_client_finds_the_token_by_itself_also_one_that_was_there_first(served: Served, tmp_path: Path) -> None:
    with ApiClient(replace(served.settings, server=served.url)) as api:
        api.post("/runs", run_record())
        assert len(api.get("/runs")) == 1
    with ApiClient(replace(served.settings, server=served.url, home=tmp_path)) as early:
        with pytest.raises(ApiError, match="TIGHTSHIP_HOME"):
            early.get("/runs")
        write_token(local_token_path(tmp_path), served.local_token)
        assert len(early.get("/runs")) == 1
        local_token_path(tmp_path).chmod(0o644)
        with pytest.raises(TokenWithheld, match="with 644"):
            early.get("/runs")


def test_the_token_goes_to_no_server_elsewhere(served: Served) -> None:
    for server in ("http://tightship.example:8050", "http://10.0.0.1", "http://127.0.0.1.nip.io"):
        assert credentials(replace(served.settings, server=server)) is None


def test_whose_server_it_is_can_be_seen(served: Served) -> None:
    port = int(served.url.rpartition(":")[2])
    assert listening_users("127.0.0.1", port) == {os.geteuid()} == listening_users("localhost", port)
    assert listening_users("::1", port) == listening_users("127.0.0.1", 9) == set()


@ROOT
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::1"])
def test_another_user_who_took_the_port_is_not_shown_the_token(platform_env: Any, address: str) -> None:
    make_token(local_token_path(platform_env.home))
    code = (
        "family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET\n"
        "listener = socket.create_server((sys.argv[1], 0), family=family, dualstack_ipv6=sys.argv[1] == '::')\n"
        "print(json.dumps(listener.getsockname()[1]), flush=True)\nsys.stdin.readline()\n"
        "listener.settimeout(0)\ntry:\n    print(json.dumps(repr(listener.accept()[0].recv(9999))), flush=True)\n"
        "except BlockingIOError:\n    print(json.dumps(''), flush=True)\n"
    )
    near = "[::1]" if address == "::1" else "127.0.0.1"
    with stranger(code, address) as thief:
        port = answer_of(thief)
        settings = replace(platform_env.settings, server=f"http://{near}:{port}")
        with ApiClient(settings) as api, pytest.raises(TokenWithheld, match=f"another user, {STRANGER}, listens"):
            api.get("/runs")
        assert thief.stdin is not None
        thief.stdin.write("\n")
        thief.stdin.flush()
        assert answer_of(thief) == ""


@ROOT
def test_another_user_of_the_machine_gets_in_nowhere(served: Served) -> None:
    code = (
        "def ask(method, path):\n"
        "    data = b'{}' if method == 'POST' else None\n"
        "    request = urllib.request.Request(sys.argv[1] + path, data=data, headers={'accept': '*/*'})\n"
        "    try:\n        return urllib.request.urlopen(request, timeout=60).status\n"
        "    except urllib.error.HTTPError as error:\n        return error.code\n"
        "found = {path: ask(*path.split()) for path in sys.argv[3].split(',')}\n"
        "try:\n    open(sys.argv[2] + '/token')\n    found['token'] = 'read'\n"
        "except OSError as error:\n    found['token'] = error.strerror\n"
        "try:\n    os.listdir(sys.argv[2] + '/login')\n    found['codes'] = 'read'\n"
        "except OSError as error:\n    found['codes'] = error.strerror\n"
        "print(json.dumps(found), flush=True)\n"
    )
    make_code(served.settings.home)
    paths = ["GET /", "GET /runs", "GET /api/v1/runs", "POST /api/v1/runs", "POST /api/v1/captures", "GET /metrics"]
    with stranger(code, served.url, str(served.settings.home), ",".join(paths)) as other:
        found = answer_of(other)
    assert {found[path] for path in paths} == {401}
    assert (found["token"], found["codes"]) == ("Permission denied", "Permission denied")


# ---- a browser -------------------------------------------------------------------------------------------------------


def browser(served: Served) -> httpx.Client:
    return httpx.Client(base_url=served.url, headers={"accept": "text/html"}, trust_env=False, timeout=PATIENCE_S)


def test_a_link_logs_a_browser_in_once(served: Served) -> None:
    link = login_link(served.url, served.settings.home)
    assert served.local_token not in link
    with browser(served) as pages, browser(served) as late:
        sent_on = pages.get("/runs")
        assert (sent_on.status_code, sent_on.headers["location"]) == (303, "/login?next=%2Fruns")
        assert "tightship token link" in pages.get(sent_on.headers["location"]).text
        answer = pages.get(link, params={"code": link.rpartition("=")[2], "next": "/runs?workflow=a"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs?workflow=a")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert pages.get("/").status_code == 200
        ok(pages.post("/api/v1/runs", json=run_record(), headers={"origin": served.url}))
        assert pages.get(link).headers["location"] == "/", "it is in already"
        again = late.get(link)
        assert (again.status_code, "set-cookie" in again.headers) == (401, False)
        assert "This link was used, or is older than 5 minutes" in again.text
        assert late.get("/").status_code == 303
        assert pages.get("/logout").status_code == 303
        assert pages.get("/").status_code == 303
    with served.http() as http:
        assert [entry["actor"] for entry in ok(http.get("/audit", params={"action": "session.begin"}))] == ["loopback"]


def test_a_cookie_of_an_old_token_does_not_keep_out_who_logs_in_with_another(served: Served) -> None:
    with served.database.session() as session:
        reader = create_token(session, "reader", [Scope.READ])
    with browser(served) as pages:
        pages.cookies.set(next(iter(served.cookie)), "ts_of-last-week", domain="127.0.0.1")
        assert pages.get("/api/v1/runs").status_code == 401
        assert pages.post("/login", data={"token": reader}).status_code == 303
        assert pages.get("/api/v1/runs").status_code == 200


def test_the_browser_of_one_user_is_in_at_several_servers(make_platform_env: Any, serve: Callable[..., Served]) -> None:
    both = [serve(make_platform_env().settings) for _ in range(2)]
    with httpx.Client(headers={"accept": "text/html"}, trust_env=False) as pages:
        for served in both:
            pages.get(login_link(served.url, served.settings.home))
        assert [pages.get(served.url + "/login").status_code for served in both] == [200, 200]
        assert [pages.get(served.url + "/api/v1/runs").status_code for served in both] == [200, 200]


@pytest.mark.parametrize("header", ["x-forwarded-for", "via", "host"])
def test_a_link_is_good_on_this_machine_only(served: Served, header: str) -> None:
    with browser(served) as pages:
        for path in (login_link("", served.settings.home), "/login"):
            data = {"token": served.local_token}
            headers = {header: "elsewhere.example"}
            answer = (
                pages.get(path, headers=headers) if "code" in path else pages.post(path, data=data, headers=headers)
            )
            refused(answer, 403, "own machine")
            assert "set-cookie" not in answer.headers


def test_a_server_with_a_given_token_takes_no_links(platform_env: Any, serve: Callable[..., Served]) -> None:
    served = serve(replace(platform_env.settings, token="admin-token-of-tests"))
    assert not local_token_path(platform_env.home).exists()
    with browser(served) as pages:
        answer = pages.get(login_link("", platform_env.home))
        assert (answer.status_code, "tightship token link" in answer.text) == (401, False)


def test_a_code_is_taken_once_however_many_come_with_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for code in [make_code(tmp_path) for _ in range(20)]:
            assert sum(pool.map(lambda _, code=code: take_code(tmp_path, code), range(8))) == 1  # type: ignore[misc]
    assert list((tmp_path / "login").iterdir()) == []


def test_a_code_is_good_for_five_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000 * NS_PER_S]
    monkeypatch.setattr(login_codes, "_now_ns", lambda: clock[0])
    early, late, after_a_restart = (make_code(tmp_path) for _ in range(3))
    clock[0] += CODE_S * NS_PER_S - 1
    assert take_code(tmp_path, early)
    clock[0] += 1
    assert not take_code(tmp_path, late)
    clock[0] = 3 * NS_PER_S  # the machine was started again
    assert not take_code(tmp_path, after_a_restart)
    old = make_code(tmp_path)
    clock[0] += CODE_S * NS_PER_S
    make_code(tmp_path)
    assert not take_code(tmp_path, old)
    assert len(list((tmp_path / "login").iterdir())) == 1, "old ones do not pile up"


@pytest.mark.parametrize("code", ["", "x", "../token", "a" * 43, "/" * 43, "é" * 43, "a" * 42 + "\n", "x" * 10_000])
def test_what_is_no_code_opens_nothing(served: Served, code: str) -> None:
    make_code(served.settings.home)
    with browser(served) as pages:
        answer = pages.get("/login", params={"code": code})
        assert "set-cookie" not in answer.headers
        assert answer.status_code == (401 if code else 200)
    assert local_token_path(served.settings.home).exists()


@ROOT
@pytest.mark.parametrize("fault", ["owner", "mode", "link"])
def test_codes_in_a_folder_that_others_can_write_to_are_no_codes(tmp_path: Path, fault: str) -> None:
    code, folder = make_code(tmp_path), tmp_path / "login"
    if fault == "owner":
        os.chown(folder, STRANGER, STRANGER)
    elif fault == "mode":
        folder.chmod(0o770)
    else:
        folder.rename(tmp_path / "real")
        folder.symlink_to(tmp_path / "real")
    assert not take_code(tmp_path, code)
    with pytest.raises(Invalid, match="Folder of login codes"):
        make_code(tmp_path)


def test_the_command_prints_a_link_for_ones_own_server_and_says_what_else_to_do(served: Served, tmp_path: Path) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "TIGHTSHIP_SERVER": served.url,
    }
    own = environ | {"TIGHTSHIP_HOME": str(served.settings.home), "TIGHTSHIP_TOKEN": "of-another-server"}
    done = tightship(own, "token", "link")
    assert (done.returncode, done.stderr) == (0, "")
    with browser(served) as pages:
        assert pages.get(done.stdout.strip()).status_code == 303
    write_token(local_token_path(tmp_path), new_token())
    other = tightship(environ | {"TIGHTSHIP_HOME": str(tmp_path)}, "token", "link")
    assert other.returncode == 2
    (line,) = other.stderr.splitlines()
    assert "is no server of yours" in line and f"{served.url}/login" in line


def test_a_server_that_begins_to_listen_after_it_was_looked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at who listens and the connection it may start: the client asks once more, with the token."""
    looks: list[set[int]] = [set()]
    monkeypatch.setattr(
        "tightship_platform.token_file.listening_users",
        lambda host, port: looks.pop() if looks else listening_users(host, port),
    )
    with ApiClient(replace(served.settings, server=served.url)) as api:
        assert api.get("/runs") == []
    assert looks == []
