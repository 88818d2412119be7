"""The compiled part: where it is kept, by whom it may have been put there, and what is said where there is none."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tightship_offload.runtime import native

pytestmark = pytest.mark.torch
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)
SMALL = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the libraries, and a source that compiles in no time."""
    source = tmp_path / "small.cpp"
    source.write_text(SMALL)
    monkeypatch.setattr(native, "SOURCE", source)
    monkeypatch.setattr(native, "FLAGS", ("-shared", "-fPIC"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(native.SWITCH, raising=False)
    return tmp_path / "tightship" / "native"


def answer() -> int:
    found = native.load()
    assert found.library is not None, found.reason
    return int(found.library.answer())


@needs_compiler
def test_it_is_compiled_once_and_kept_for_this_user_alone(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer() == 42
    (library,) = kept.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700 and library.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(native, "_compile", None)  # nobody calls it again
    assert answer() == 42


@needs_compiler
@pytest.mark.parametrize("what", ["source", "flags", "processor"])
def test_what_it_was_made_from_is_in_its_name(kept: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    answer()
    if what == "source":
        native.SOURCE.write_text(SMALL + "\n")
    elif what == "flags":
        monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-O1"))
    else:
        monkeypatch.setattr(native, "_processor", lambda: "another")
    answer()
    assert len(list(kept.iterdir())) == 2


@needs_compiler
def test_a_folder_into_which_others_may_look_or_write_is_not_used(kept: Path) -> None:
    for mode in (0o777, 0o770, 0o755):
        kept.mkdir(parents=True, exist_ok=True)
        kept.chmod(mode)
        assert answer() == 42
        assert list(kept.iterdir()) == []


@needs_compiler
def test_a_link_in_place_of_the_folder_is_not_followed(kept: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    kept.parent.mkdir()
    kept.symlink_to(elsewhere)
    assert answer() == 42
    assert list(elsewhere.iterdir()) == []


@needs_compiler
@pytest.mark.parametrize("spoiled", ["others may write", "link"])
def test_a_library_that_may_not_be_ours_or_whole_is_made_again(kept: Path, tmp_path: Path, spoiled: str) -> None:
    answer()
    (library,) = kept.iterdir()
    before = library.stat().st_ino
    if spoiled == "others may write":
        library.chmod(0o666)
    else:
        library.rename(tmp_path / "moved.so")
        library.symlink_to(tmp_path / "moved.so")
    assert answer() == 42
    assert not library.is_symlink() and library.stat().st_mode & 0o077 == 0 and library.stat().st_ino != before


@needs_compiler
def test_a_library_that_is_cut_short_is_made_again(kept: Path) -> None:
    kept.mkdir(mode=0o700, parents=True)
    library = kept / f"native-{native._identity(native._command())}.so"
    library.write_bytes(b"\x7fELF")
    library.chmod(0o700)
    assert answer() == 42
    assert library.stat().st_size > 100


@needs_compiler
def test_where_nothing_can_be_kept_it_serves_this_process(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "tightship").write_text("a file")
    assert answer() == 42


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"CXX": "no-such-compiler -x"}, r"there is no C\+\+ compiler \(no-such-compiler -x\)"),
        ({"CXX": "false"}, "false failed with 1: no message"),
        ({"CXX": '"'}, "No closing quotation"),
        ({"TIGHTSHIP_OFFLOAD_NATIVE": "0"}, "TIGHTSHIP_OFFLOAD_NATIVE is 0"),
        ({"PATH": "/nowhere"}, r"there is no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\)"),
    ],
)
def test_why_there_is_none(kept: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = native.load()
    assert found.library is None
    assert re.search(reason, found.reason), found.reason
    assert not kept.exists() or list(kept.iterdir()) == []


@needs_compiler
def test_what_the_compiler_says_is_one_line(kept: Path) -> None:
    native.SOURCE.write_text("int answer( {\n" * 40)
    reason = native.load().reason
    assert "error" in reason and "\n" not in reason and len(reason) <= 200
    assert list(kept.iterdir()) == []


@needs_compiler
def test_the_real_one_compiles_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flags are the ones that are used, but for speed."""
    flags = [flag for flag in native.FLAGS if flag != "-O3"]
    monkeypatch.setattr(native, "FLAGS", (*flags, "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"))
    target = native._compile(native._command(), tmp_path / "real.so")
    assert os.access(target, os.R_OK)
