"""The dashboard on the platform's server: addresses, first paint, callbacks, several servers in one process."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest
import uvicorn
from api_calls import Served, run_record, serving
from dash import Input, Output, html
from fastapi import FastAPI
from simulated_fleet import LIVE_RUN
from waiting import PATIENCE_S

from tightship_analyzers.rules.catalogue import RULES
from tightship_dashboard.pages.view import parse_query
from tightship_dashboard.sentences.rule_text import rule_text
from tightship_dashboard.server import routing
from tightship_dashboard.server.backend import PlatformBackend
from tightship_dashboard.server.first_paint import TightshipDash
from tightship_platform.api.bodies import PAGE_MAX_BYTES

FIT = ("/will-it-fit", "/will-it-fit?workflow=nope&memory=x")
PAGES = (
    "/",
    "/?range=24h",
    "/runs",
    "/runs?by=input",
    "/runs?search=lr%3D3e-4+host:node-01",
    "/runs?search=nowhere",
    "/runs?search=commit:HEAD",
    f"/runs/{LIVE_RUN}",
    "/findings/1",
    "/collection",
    "/audit",
    "/did-it-work",
    "/did-it-work?state=refuted&team=vision",
    "/did-it-work?opportunity=x",
    *FIT,
)


@contextmanager
def serving_app(app: FastAPI) -> Iterator[str]:
    """A bare application on its own port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=3))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def callback(client: httpx.Client, output: str, inputs: list[dict[str, Any]], **more: Any) -> httpx.Response:
    """One callback, as the browser asks for it."""
    outputs = more.pop("outputs", {"id": output.rsplit(".", 1)[0], "property": output.rsplit(".", 1)[1]})
    changed = [f"{i['id']}.{i['property']}" for i in inputs]
    body = {"output": output, "outputs": outputs, "inputs": inputs, "changedPropIds": changed} | more
    return client.post("/_dash-update-component", json=body)


def route(client: httpx.Client, path: str, search: str = "") -> httpx.Response:
    return callback(
        client,
        "..page.children...title.data..",
        [{"id": "url", "property": "pathname", "value": path}],
        state=[{"id": "url", "property": "search", "value": search}],
        outputs=[{"id": "page", "property": "children"}, {"id": "title", "property": "data"}],
    )


@pytest.mark.parametrize("path", PAGES)
def test_the_document_holds_the_answer_before_any_script_has_run(browser_like: httpx.Client, path: str) -> None:
    answer = browser_like.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    sentence = re.search(r'<p class="answer">(.+?)</p>', answer.text, re.S)
    assert sentence
    assert re.search(r"\d", sentence[1])
    assert "http://" not in answer.text.replace("http://www.w3.org", "")
    assert "https://" not in re.sub(r'"dash_version_url":\s*"[^"]*"', "", answer.text), "nothing comes from elsewhere"


@pytest.mark.parametrize("path", PAGES)
def test_every_page_draws(browser_like: httpx.Client, path: str) -> None:
    pathname, _, search = path.partition("?")
    answer = route(browser_like, pathname, search)
    assert answer.status_code == 200, answer.text
    drawn = answer.text
    assert "could not be drawn" not in drawn
    assert '"className":"answer"' in drawn.replace(" ", "")


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/runs/0000",
        "/did-it-work/99999",
        "/did-it-work/abc",
        "/findings/99999",
        "/findings/abc",
        "/findings/" + "9" * 30,
        "/runs/a/b",
        "/x/../y",
    ],
)
def test_an_unknown_address_is_404_and_a_friendly_page(browser_like: httpx.Client, path: str) -> None:
    answer = browser_like.get(path)
    assert answer.status_code == 404
    assert "Traceback" not in answer.text
    drawn = route(browser_like, path).json()["response"]
    assert "Nothing here" in str(drawn)


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v1/nope", "/api/v2/runs"])
def test_unknown_addresses_of_the_api_stay_json(browser_like: httpx.Client, path: str) -> None:
    answer = browser_like.get(path)
    assert answer.status_code == 404
    assert list(answer.json()) == ["error"]


def test_the_api_works_beside_the_pages(fleet: Served) -> None:
    with fleet.http() as api:
        assert api.get("/health").json()["status"] == "ok"
        assert api.get("/runs", params={"limit": 3}).status_code == 200


def test_favicon_and_assets_are_there(browser_like: httpx.Client) -> None:
    for path in ("/favicon.ico", "/assets/favicon.svg", "/assets/before_paint.js", "/assets/page.css"):
        assert browser_like.get(path, follow_redirects=True).status_code == 200, path


def test_every_script_of_the_document_exists_and_large_ones_travel_compressed(browser_like: httpx.Client) -> None:
    document = browser_like.get("/").text
    addresses = re.findall(r'(?:src|href)="(/(?:_dash-component-suites|assets)/[^"]+)"', document)
    assert len(addresses) > 8
    for address in addresses:
        answer = browser_like.get(address)
        assert answer.status_code == 200, address
        if address.startswith("/_dash"):
            assert answer.headers["content-encoding"] == "gzip"
            assert "max-age" in answer.headers["cache-control"]
    plain = browser_like.get(addresses[0], headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    "address",
    ["dash/nope.js", "os/path.py", "dash/../../etc/passwd", "dash_ag_grid/secret.js", "no_such_package/x.js"],
)
def test_only_scripts_of_the_dashboard_are_served(browser_like: httpx.Client, address: str) -> None:
    answer = browser_like.get(f"/_dash-component-suites/{address}")
    assert answer.status_code == 404
    assert "Traceback" not in answer.text


# ---- callbacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"output": 5}', b'{"output": "nope.children"}', b'"x"', b"null", b'{"output": []}']
)
def test_rubbish_instead_of_a_callback_is_refused(browser_like: httpx.Client, body: bytes) -> None:
    answer = browser_like.post("/_dash-update-component", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


def test_a_callback_of_known_name_but_wrong_shape_is_one_line(browser_like: httpx.Client) -> None:
    answer = callback(browser_like, "search.data", [])
    assert answer.status_code >= 400
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("path", ["/", "/_dash-update-component", "/_dash-layout", "/_dash-x", "/runs", "/login"])
def test_a_body_that_is_too_large_is_refused_before_its_end(fleet: Served, path: str, announced: bool) -> None:
    """Wherever it goes, and also one that does not say how long it is: its sender is still at it."""
    host, port = fleet.url.removeprefix("http://").split(":")
    length = f"Content-Length: {400 * 2**20}" if announced else "Transfer-Encoding: chunked"
    piece = b"x" * (PAGE_MAX_BYTES + 1)
    sent = piece[:1000] if announced else b"%x\r\n%s\r\n" % (len(piece), piece)
    (cookie,) = ("=".join(item) for item in fleet.cookie.items())
    for method in ("GET", "POST"):
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n"
        head += f"Content-Type: application/json\r\n{length}\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sender:
            sender.sendall(head.encode() + sent)
            answer = HTTPResponse(sender, method=method)
            answer.begin()
            assert answer.status == 413, method
            assert "send at most" in json.loads(answer.read())["error"]


def test_a_callback_whose_length_is_not_announced_is_taken(browser_like: httpx.Client) -> None:
    body = b'{"output": "search.data", "outputs": {"id": "search", "property": "data"}, "changedPropIds": [], '
    rest = b'"inputs": [{"id": "search-asked", "property": "data", "value": 1}]}'
    answer = browser_like.post(
        "/_dash-update-component", content=iter((body, rest)), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200
    assert "Workflows" in answer.text


def test_search_offers_workflows_runs_and_findings(browser_like: httpx.Client) -> None:
    answer = callback(browser_like, "search.data", [{"id": "search-asked", "property": "data", "value": 1}])
    groups = {group["group"]: group["items"] for group in answer.json()["response"]["search"]["data"]}
    assert list(groups) == ["Workflows", "Runs", "Findings"]
    assert {"value": "/runs?workflow=gpt-small", "label": "gpt-small"} in groups["Workflows"]


def test_a_callback_does_not_hold_up_the_event_loop() -> None:
    """The callback waits for another request to be answered: on the loop itself it would wait for ever."""
    app = FastAPI()
    reached = threading.Event()

    @app.get("/other")
    async def _other() -> str:
        reached.set()
        return "answered"

    dash = TightshipDash(__name__, server=False, backend=PlatformBackend, use_pages=False, pages_folder="")
    dash.layout = html.Div(id="out")

    @dash.callback(Output("out", "children"), Input("out", "n_clicks"))
    def _slow(_clicks: int) -> str:
        return str(reached.wait(timeout=PATIENCE_S))

    dash.init_app(app)
    with serving_app(app) as url, httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        answers: list[httpx.Response] = []
        inputs = [{"id": "out", "property": "n_clicks", "value": 1}]
        slow = threading.Thread(target=lambda: answers.append(callback(client, "out.children", inputs)))
        slow.start()
        with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as other:
            assert other.get("/other").json() == "answered"
        slow.join()
    assert answers[0].json()["response"]["out"]["children"] == "True"


def test_several_servers_in_one_process_do_not_mix(
    fleet: Served, make_platform_env: Callable[..., Any], browser_like: httpx.Client
) -> None:
    with (
        serving(make_platform_env().settings) as other,
        other.pages() as client,
    ):
        assert "no run held a device" in client.get("/", headers={"accept": "text/html"}).text
        assert "Nothing has reported yet" in route(client, "/").text
        assert "were productive" in browser_like.get("/").text
        assert "were productive" in route(browser_like, "/").text


# ---- hostile names ---------------------------------------------------------------------------------------------------


def test_names_with_markup_stay_text_in_the_document(make_platform_env: Callable[..., Any]) -> None:
    name = "</p><script>alert(1)</script>"
    with serving(make_platform_env().settings) as served, served.http() as api:
        record = run_record(workflow=name, owner='"><img src=x>', command=["python", "a\nb", "\x1b[31m"])
        assert api.post("/runs", json=record).status_code == 200
        with served.pages() as client:
            for path in ("/runs", f"/runs/{record['run']}", "/runs?workflow=%3Cscript%3E"):
                text = client.get(path, headers={"accept": "text/html"}).text
                assert "<script>alert" not in text
                assert "<img" not in text
            drawn = route(client, f"/runs/{record['run']}").text
            assert "could not be drawn" not in drawn


# ---- small things ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", [None, "", "?", "?" + "&".join(f"a{i}=1" for i in range(99)), "?%ff=%zz"])
def test_odd_queries_do_not_break_a_page(search: str | None) -> None:
    assert isinstance(parse_query(search), dict)


def test_the_last_of_two_filters_counts() -> None:
    assert parse_query("?state=running&state=failed&workflow=a+b") == {"state": "failed", "workflow": "a b"}


def test_the_pages_and_their_titles() -> None:
    assert [
        page.title for page in map(routing.page_at, ("/", "/runs", "/runs/", "/runs/a1", "/findings/3")) if page
    ] == [
        "Where do device-hours go?",
        "Runs",
        "Runs",
        "Run a1",
        "Finding 3",
    ]
    assert routing.page_at("/runs/a/b") is None


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_every_rule_has_its_page(rule: str) -> None:
    text = rule_text(rule)
    assert text
    assert "## What it finds" in text
    assert rule_text("no-such-rule") is None


def test_the_server_starts_without_what_reads_traces(modules_of_the_server: set[str]) -> None:
    assert not {"numpy", "pyarrow", "torch"} & modules_of_the_server
