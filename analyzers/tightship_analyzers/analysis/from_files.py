"""The analysis of trace files by path: no server, no database, nothing written."""

from __future__ import annotations

from collections.abc import Sequence

from tightship_analyzers.analysis.analyze_rank import OtherRank
from tightship_analyzers.analysis.join_ranks import join_ranks
from tightship_analyzers.analysis.named_traces import ReadingBars, named_traces
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.rank_processes import analyze_files
from tightship_analyzers.analysis.wanted import Wanted
from tightship_platform.errors import Invalid, TightshipError
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.text import shown
from tightship_platform.units import format_ns, plural


def analyze_paths(
    paths: Sequence[str], *, wanted: Wanted | None = None, jobs: int = 1, progress: bool = False
) -> RunAnalysis:
    """Judge every trace that the paths name, `jobs` files at once.

    A file that cannot be read does not cost the others theirs: it is in `failed` where it was named itself, and in
    `skipped` where it only lay in a folder.

    :raises TightshipError: no file can be read, none has the rank that is wanted, or two files are of the same rank.
    """
    wanted = wanted or Wanted()
    named = dict(named_traces(paths))
    parts: list[RankPart] = []
    failed: list[str] = []
    skipped: list[str] = []
    others: set[int | None] = set()
    with ReadingBars(wanted=progress, files=len(named)) as bars:
        for source, outcome in analyze_files(list(named), wanted, jobs=jobs, on_progress=bars.tell):
            bars.done(source)
            if isinstance(outcome, RankPart):
                _refuse_twins(outcome, parts)
                parts.append(outcome)
            elif isinstance(outcome, OtherRank):
                others.add(outcome.rank)
            else:
                (failed if named[source] else skipped).append(shown(str(outcome).replace(wanted.within, ""), 300))
    if not parts:
        raise TightshipError(_nothing(wanted, others, [*failed, *skipped]))
    _check_untraced(wanted, parts)
    return join_ranks(parts, wanted, skipped=skipped, failed=failed)


def _check_untraced(wanted: Wanted, parts: Sequence[RankPart]) -> None:
    given = wanted.untraced_step_ns
    if given is None:
        return
    recorded = [step.mean for one in parts if (step := one.analysis.summary.step_ns)]
    if not recorded:
        raise TightshipError("--untraced-step does not apply: no trace holds a whole step; leave it out")
    if given > max(recorded):
        raise Invalid(
            "Untraced step",
            format_ns(given),
            f"at most the {format_ns(max(recorded))} of a recorded step, which recording can only make longer",
        )


def _refuse_twins(new: RankPart, parts: Sequence[RankPart]) -> None:
    for known in parts:
        if new.analysis.named and known.analysis.named and new.analysis.rank == known.analysis.rank:
            first, second = sorted((known.analysis.source, new.analysis.source))
            raise TightshipError(
                f"{shown(first)} and {shown(second)} are both of rank {new.analysis.rank}; give the files of one "
                "capture (one file a rank), or compare two with `tightship diff`"
            )


def _nothing(wanted: Wanted, others: set[int | None], unread: Sequence[str]) -> str:
    if others:
        ranks = ", ".join(map(str, sorted(rank for rank in others if rank is not None)))
        there = f"the others are of ranks {ranks}" if ranks else "the files do not say which rank they are: omit --rank"
        why = f" ({unread[0]})" if unread else ""
        return f"No trace of rank {wanted.rank} could be judged{why}; {there}"
    return unread[0] if len(unread) == 1 else f"None of {plural(len(unread), 'file')} could be judged: {unread[0]}"
