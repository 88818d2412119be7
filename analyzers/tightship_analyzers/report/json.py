"""The analysis as `tightship analyze --json` prints it."""

from __future__ import annotations

from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.run import RunAnalysis


def analysis_json(analysis: RunAnalysis, *, facts: bool = False) -> dict[str, object]:
    """The keys of `tightship analyze --json`: of each rank the summary and the figures lie in one object.

    Records are left as they are, for `json.dumps(…, default=fields_of)`.

    :param facts: with the cost of the facts of each rank.
    """
    return {
        "ranks": [_rank_json(one, facts=facts) for one in analysis.ranks],
        "across_ranks": analysis.across_ranks,
        "findings": analysis.findings,
        "not_judged": analysis.not_judged,
        "skipped": analysis.skipped,
        "failed": analysis.failed,
    }


def _rank_json(one: RankAnalysis, *, facts: bool) -> dict[str, object]:
    known = {"rank": one.rank, "source": one.source, **vars(one.summary), **vars(one.figures)}
    return known | {"facts": one.facts} if facts else known
