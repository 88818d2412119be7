"""GenTD26: what a pod held, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_history import STEP_S, T0_S, archive, duty, memory, written

from tightship_collectors.importers import alibaba_genai
from tightship_collectors.importers.source import Options
from tightship_collectors.importers.times import OUTSIDE
from tightship_platform.errors import Invalid
from tightship_platform.results.imported import ImportedRun, ImportedSamples
from tightship_platform.units import NS_PER_S

PODS = {"aa": [(0, 0.0), (1, 50.0), (2, 0.0), (5, 100.0)], "bb": [(1, 4.0), (2, 0.0)]}
STEP = STEP_S * NS_PER_S


def folder(tmp_path: Path, text: str) -> Path:
    archive(tmp_path / "pod_gpu_duty_cycle_anon.tar.gz", text)
    return tmp_path


def test_a_pod_holds_one_device_while_it_reports(tmp_path: Path) -> None:
    archive(tmp_path / "pod_gpu_memory_used_bytes_anon.tar.gz", memory({"aa": [(0, 7.0), (3, 9.0)], "zz": [(0, 1.0)]}))
    source = alibaba_genai.open_source(folder(tmp_path, duty(PODS)), Options())
    items = list(source.items)
    first, second = (one for one in items if isinstance(one, ImportedRun))
    t0 = T0_S * NS_PER_S
    assert first.devices[0].spans == [[t0, t0 + 3 * STEP], [t0 + 5 * STEP, t0 + 6 * STEP]], "a hole is not held"
    assert second.devices[0].spans == [[t0 + STEP, t0 + 3 * STEP]]
    assert (first.state, first.workflow) == ("unknown", "pods")
    samples = next(one for one in items if isinstance(one, ImportedSamples))
    assert samples.util_frac == [0.0, 0.5, 0.0, None, 1.0]
    assert samples.memory_used_bytes == [7, None, None, 9, None]
    assert source.interval_ns == STEP
    assert source.rows == 9
    assert source.refused.counts == {"memory of a pod without any duty cycle": 1}
    assert any("one device per pod" in text for text in source.assumptions)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (f"101.0,{T0_S}.0,cc", "a duty cycle below 0 or above 100 %"),
        (f"-1,{T0_S}.0,cc", "a duty cycle below 0 or above 100 %"),
        (f"nan,{T0_S}.0,cc", "no value"),
        (f"1e999999999,{T0_S}.0,cc", "a duty cycle below 0 or above 100 %"),
        ("1.0,1e300,cc", "no time in seconds"),
        ("1.0,,cc", "no time in seconds"),
        ("1.0,57.0,cc", OUTSIDE),
        (f"1.0,{T0_S}.0,NULL", "no pod"),
        (f"1.0,{T0_S}.0,aa", "a second sample of one pod and time"),
        ("1.0,2.0", "not 3 columns, as the first line has"),
        ('1.0,"2.0,cc', "quotes that do not close"),
    ],
)
def test_a_bad_row_is_left_out_and_listed_with_its_line(tmp_path: Path, line: str, why: str) -> None:
    source = alibaba_genai.open_source(folder(tmp_path, f"{duty(PODS)}{line}\n"), Options())
    assert source.refused.counts == {why: 1}
    assert source.refused.listed[0].place == "pod_gpu_duty_cycle_anon.tar.gz:8"
    assert sum(isinstance(one, ImportedRun) for one in source.items) == 2


def test_half_an_archive_says_so(tmp_path: Path) -> None:
    many = {f"{number:04x}": [(step, float(step % 97)) for step in range(50)] for number in range(40)}
    path = folder(tmp_path, duty(many)) / "pod_gpu_duty_cycle_anon.tar.gz"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    source = alibaba_genai.open_source(tmp_path, Options())
    assert source.refused.is_cut_off
    assert 0 < source.rows < 2000


def test_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="Folder"):
        alibaba_genai.open_source(tmp_path, Options())
    wrong = written(tmp_path / "pod_gpu_duty_cycle_anon.csv", "a,b", "1,2")
    with pytest.raises(Invalid, match="GenTD26"):
        alibaba_genai.open_source(wrong, Options())
    with pytest.raises(Invalid, match="duty_cycle"):
        alibaba_genai.open_source(written(tmp_path / "jobs.txt", "a"), Options())
