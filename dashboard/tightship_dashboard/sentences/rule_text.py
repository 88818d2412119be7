"""The public page of a rule, as its catalogue entry tells it."""

from __future__ import annotations

from functools import cache


@cache
def rule_text(rule_id: str) -> str | None:
    """Markdown of the rule's page; null for a rule that this release does not know (a newer worker made it)."""
    from tightship_analyzers.rules.catalogue import RULES  # here: it imports every rule, which few pages need

    return next((rule.page for rule in RULES if rule.id == rule_id), None)
