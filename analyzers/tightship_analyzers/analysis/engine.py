"""Apply rules, each in isolation: one that raises costs its own findings only, whatever it judges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tightship_analyzers.findings.model import Failed, Finding, Judgement, NotApplicable, Rule
from tightship_analyzers.hardware import HardwareError

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Rule)

NotJudged = dict[str, NotApplicable | Failed]
"""Rule id → why it did not apply."""


def apply_rules(rules: Iterable[R], judge: Callable[[R], Judgement], subject: str) -> tuple[list[Finding], NotJudged]:
    """Findings of the rules in their order, and why the others gave none.

    :param judge: lets one rule judge the subject.
    :param subject: what is judged, for the log.
    :raises HardwareError: a user's file of devices is bad, which no rule could read.
    """
    findings: list[Finding] = []
    not_judged: NotJudged = {}
    for rule in rules:
        try:
            outcome = judge(rule)
            found = outcome if isinstance(outcome, NotApplicable) else list(outcome)
        except HardwareError:
            raise
        except Exception as error:  # a rule that breaks on strange input must not cost the others their findings
            log.exception("Rule %s failed on %s", rule.id, subject)
            not_judged[rule.id] = Failed(f"failed with {type(error).__name__}; please report it with the trace")
            continue
        if isinstance(found, NotApplicable):
            not_judged[rule.id] = found
        else:
            findings.extend(found)
    return findings, not_judged


def failures(not_judged: NotJudged) -> Sequence[str]:
    """The rules that broke."""
    return [rule for rule, why in not_judged.items() if isinstance(why, Failed)]
