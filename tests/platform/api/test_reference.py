"""The API's reference: the page `/docs` of a server, and docs/http-api.md, both from the OpenAPI document."""

from __future__ import annotations

import re
from html import unescape

import http_reference
import httpx
from api_calls import Served, ok

from tightship_platform.api.reference import RecordName, Words, read_reference


def test_the_page_shows_every_operation_and_record_and_loads_nothing(served: Served, http: httpx.Client) -> None:
    document = ok(http.get("/openapi.json"))
    with served.pages() as browser:
        page = browser.get("/docs")
    assert page.status_code == 200
    text = unescape(page.text)
    for path, methods in document["paths"].items():
        for method in methods:
            assert f">{method.upper()} {path}</h3>" in text
    for name, schema in document["components"]["schemas"].items():
        assert ("properties" not in schema) or f'id="{name}"' in text
    ids = set(re.findall(r' id="([^"]+)"', text))
    links = re.findall(r"""href=["']([^"']+)["']""", text)
    assert {link[1:] for link in links if link.startswith("#")} <= ids
    assert {link for link in links if not link.startswith("#")} == {"/", "/api/v1/openapi.json", "data:,"}
    assert "<script" not in text and "src=" not in text and "url(" not in text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy


def test_the_page_wants_a_token_like_all_others(served: Served) -> None:
    with httpx.Client(base_url=served.url, trust_env=False) as stranger:
        assert stranger.get("/docs").status_code == 401
        asked = stranger.get("/docs", headers={"accept": "text/html"})
        assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=%2Fdocs")


def test_the_written_reference_is_of_the_document_that_servers_serve(http: httpx.Client) -> None:
    assert http_reference.api_document() == ok(http.get("/openapi.json"))


def kind_of(schema: dict[str, object], **records: object) -> Words:
    """How the type of a key is said."""
    holder = {"properties": {"key": schema}}
    reference = read_reference({"paths": {}, "components": {"schemas": {"Holder": holder, **records}}})
    (row,) = next(one for one in reference.records if one.name == "Holder").keys
    return row.kind


def test_types_are_said_in_words() -> None:
    run, state = {"properties": {}}, {"enum": ["lost", "failed"], "type": "string"}
    to_run = {"$ref": "#/components/schemas/Run"}
    assert kind_of({"type": "array", "items": to_run}, Run=run) == ("array of ", RecordName("Run"))
    assert kind_of({"anyOf": [to_run, {"type": "null"}]}, Run=run) == (RecordName("Run"), " or ", "null")
    assert kind_of({"$ref": "#/components/schemas/State"}, State=state) == ('`"lost"` or `"failed"`',)
    assert kind_of({"type": "object", "additionalProperties": {"type": "integer"}}) == ("object of ", "integer")
    assert kind_of({"type": "object", "additionalProperties": True}) == ("object",)
    assert kind_of({"const": 1}) == ("`1`",)
    assert kind_of({}) == ("anything",)


def test_what_a_record_says_cannot_become_markup() -> None:
    from tightship_platform.api.reference_page import draw

    holder = {"description": "<b>x</b> `<i>`", "properties": {"<u>": {"type": "string", "description": "a & b"}}}
    page = draw(read_reference({"paths": {}, "components": {"schemas": {"Holder": holder}}}), "<1>")
    assert "&lt;b&gt;x&lt;/b&gt; <code>&lt;i&gt;</code>" in page
    assert "<code>&lt;u&gt;</code>" in page and "a &amp; b" in page and "&lt;1&gt;" in page
