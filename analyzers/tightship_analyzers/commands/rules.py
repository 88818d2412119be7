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
    from tightship_analyzers.report.catalogue import find_page, print_page, print_rules, rule_pages

    groups = rule_pages()
    if rule_id is not None:
        page = find_page(groups, rule_id)
        if as_json:
            print_json(page)
        else:
            print_page(page)
    elif as_json:
        print_json([page for pages in groups.values() for page in pages])
    else:
        print_rules(groups)
