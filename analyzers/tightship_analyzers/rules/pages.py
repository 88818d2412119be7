"""The public page of a rule, made from its docstring."""

from __future__ import annotations

from tightship_analyzers.findings.model import AnyRule, Rule, Scope
from tightship_analyzers.findings.track_record import record_of
from tightship_platform.results.rule import RulePage

_SCOPES = {
    Scope.TRACE: "one rank's trace; the saving is in ns per step, without steps in ns per recording",
    Scope.RANKS: "the traces of several ranks over one window; the saving is in ns per step",
    Scope.SAMPLES: "a run's samples and steps; the saving is in ns of device time",
}


def page_text(rule: Rule) -> str:
    """Markdown: name, what it judges, then the docstring."""
    summary, _, body = rule.page.strip().partition("\n")
    known = "" if rule.scope is Scope.SAMPLES else f" {record_of(rule.id).words}."
    return (
        f"# {rule.id}\n\n{summary}\n\n*Judges {_SCOPES[rule.scope]}. In short: {rule.fix}.{known}*\n\n{body.strip()}\n"
    )


def rule_record(rule: AnyRule) -> RulePage:
    """The public record of a rule."""
    return RulePage(
        rule=rule.id,
        title=rule.title,
        scope=rule.scope.value,
        needs=[need.__name__ for need in rule.needs],
        unit=rule.scope.unit.value,
        fix=rule.fix,
        page=page_text(rule),
    )
