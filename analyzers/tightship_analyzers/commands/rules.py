"""`tightship rules`: what is looked for, and why."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("rule_id", required=False, metavar="[ID]")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON. Keys of a rule: rule, title, scope, needs, unit, fix, page."
)
def rules(rule_id: str | None, as_json: bool) -> None:
    """List the rules, or show the page of one."""
    from tightship_analyzers.report.terminal import print_page, print_rules
    from tightship_analyzers.rules.catalogue import GROUPS, RULES, find_rule
    from tightship_analyzers.rules.pages import rule_dict

    if rule_id is not None:
        rule = find_rule(rule_id)
        if as_json:
            click.echo(json.dumps(rule_dict(rule), indent=2))
        else:
            print_page(rule)
    elif as_json:
        click.echo(json.dumps([rule_dict(rule) for rule in RULES], indent=2))
    else:
        print_rules(GROUPS)
