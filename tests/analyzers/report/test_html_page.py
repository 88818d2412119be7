"""The page of `tightship analyze --html`: complete, of one file, and deaf to what names in a trace say."""

from __future__ import annotations

import gzip
import json
from html.parser import HTMLParser
from pathlib import Path

from click.testing import CliRunner

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.commands.analyze import analyze
from tightship_analyzers.report.gap_lanes import MAX_DEPTH
from tightship_analyzers.report.html.gap_drawing import drawing
from tightship_analyzers.report.html.markup import element, text
from tightship_analyzers.report.html.page import page
from tightship_platform.errors import TightshipError
from tightship_platform.results.evidence import Gap, GapLane, GapSpan

RECORDED = Path(__file__).parents[2] / "data" / "traces"
HOSTILE = '</title><script>alert(1)</script><img src=x onerror="alert(2)">\u202eevil\n'
VOID = {"meta"}


class Read(HTMLParser):
    """Takes a page apart and checks that its elements nest."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(content)
        self.close()
        assert not self.open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> within {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(*paths: Path, gaps: int = 3) -> Read:
    return Read(page(analyze_paths([str(path) for path in paths], wanted=Wanted(gaps=gaps))))


def test_the_page_holds_verdict_place_fix_saving_evidence_and_timelines() -> None:
    found = read(RECORDED / "starved.json.gz")
    for words in (
        "waiting for the next batch",
        "jobs.py:",
        "num_workers=",
        "simulated",
        "Idle under the loader",
        "productive",
    ):
        assert words in found.words
    drawings = [attributes for attributes in found.all("svg") if attributes.get("role") == "img"]
    assert len(drawings) == 4, "one of the finding, three of the longest waits"
    assert all("device idle" in str(drawn["aria-label"]) for drawn in drawings)
    titles = {attributes.get("id") for attributes in found.all("h2")}
    assert all(f"{link['href']}"[1:] + "-title" in titles for link in found.all("a"))


def test_nothing_is_loaded_and_nothing_runs() -> None:
    found = read(RECORDED / "starved.json.gz", RECORDED / "fed.json.gz")
    assert not {"script", "link", "iframe", "img", "object", "form"} & {name for name, _ in found.tags}
    for _, attributes in found.tags:
        assert not {"src", "action", "srcset"} & set(attributes)
        assert all(not name.startswith("on") for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    [policy] = [row["content"] for row in found.all("meta") if row.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'")


def test_names_in_a_trace_stay_text(tmp_path: Path) -> None:
    content = gzip.decompress((RECORDED / "starved.json.gz").read_bytes()).decode()
    hostile = json.dumps(HOSTILE)[1:-1]
    content = content.replace("jobs.py(", f"{hostile}jobs.py(").replace("aten::", f"{hostile}aten::")
    path = tmp_path / "<script>alert(3)<.json"
    path.write_text(content)
    found = read(path)
    assert not {"script", "img"} & {name for name, _ in found.tags}
    assert "<script>alert(1)</script>" in found.words, "shown as it is"
    assert "\u202e" not in found.words


def test_the_same_result_gives_the_same_page() -> None:
    result = analyze_paths([str(RECORDED / "loop.json.gz")], wanted=Wanted(gaps=2))
    assert page(result) == page(result)


def test_a_gap_from_elsewhere_is_drawn_as_far_as_it_goes() -> None:
    bare = Gap(start_ns=10**18 + 5, end_ns=10**18 + 5, lanes=[GapLane(lane="unknown")])
    assert Read(drawing(bare)).words.count("none recorded") == 3
    deep = [GapSpan(name=str(d), start_ns=d, end_ns=100, depth=d) for d in range(40)]
    drawn = Read(drawing(Gap(start_ns=50, end_ns=60, lanes=[GapLane(lane="host", spans=deep)])))
    assert len(drawn.all("svg")) == 1 + MAX_DEPTH


def test_text_is_escaped_wherever_it_stands() -> None:
    assert element("p", HOSTILE, title='"><script>').count("<") == 2
    assert text(["a<b", element("i", "&")]) == "a&lt;b<i>&amp;</i>"


def test_the_command_writes_the_page_beside_the_report(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    done = CliRunner().invoke(analyze, [str(RECORDED / "starved.json.gz"), "--html", str(target)])
    assert done.exit_code == 0 and "starved-input" in done.output
    assert "waiting for the next batch" in Read(target.read_text()).words
    lost = CliRunner().invoke(analyze, [str(RECORDED / "fed.json.gz"), "--html", str(tmp_path / "no" / "x.html")])
    assert isinstance(lost.exception, TightshipError) and "cannot be written" in str(lost.exception)
