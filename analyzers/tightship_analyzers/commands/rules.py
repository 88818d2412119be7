"""`tightship rules`: what is looked for, and why."""

from __future__ import annotations

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.rule import RulePage


@click.command()
@click.argument("rule_id", required=False, metavar="[ID]")
@json_option(RulePage, "Print JSON: with ID one object, else an array.")
def rules(rule_id: str | None, as_json: bool) -> None:
    """List the rules, or show the page of one."""
    from tightship_analyzers.report.terminal import print_page, print_rules
    from tightship_analyzers.rules.catalogue import GROUPS, RULES, find_rule
    from tightship_analyzers.rules.pages import rule_record

    if rule_id is not None:
        rule = find_rule(rule_id)
        if as_json:
            print_json(rule_record(rule))
        else:
            print_page(rule)
    elif as_json:
        print_json([rule_record(rule) for rule in RULES])
    else:
        print_rules(GROUPS)
