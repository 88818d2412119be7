"""What a list is to show: read here once for the command line, the API and the pages, turned into SQL in
`queries.filtered`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, tzinfo

from tightship_platform import validation
from tightship_platform.errors import Invalid
from tightship_platform.units import NS_PER_S, now_ns, parse_time_ns
from tightship_platform.vocabulary import LIVE

MOST_LABELS = 16
MOST_WORDS = 8
SEARCH_MAX = 500
"""Characters of a search."""
_COMMIT = re.compile(r"[0-9a-f]{4,64}")
_RULE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_TERM = re.compile(r'(?:[^\s"]|"[^"]*")+')


@dataclass(frozen=True, kw_only=True)
class _Named:
    """What is said by one text, before it is read and after."""

    state: str | None = None
    fleet: str | None = None
    """An imported fleet; without it only what is live is shown."""
    workflow: str | None = None
    team: str | None = None
    owner: str | None = None
    user: str | None = None
    host: str | None = None
    job_id: str | None = None
    """Id in the scheduler."""
    commit: str | None = None
    """Its first digits."""
    rule: str | None = None
    """Something was found by it."""


@dataclass(frozen=True, kw_only=True)
class Filters(_Named):
    """Rows that meet all that is given. All but times and state speak of the runs behind a row."""

    since_ns: int | None = None
    """From here on: a run started, a capture was requested, a finding found, a host last heard of."""
    until_ns: int | None = None
    """Before this, likewise."""
    labels: tuple[tuple[str, str], ...] = ()
    """Each is one of the run's."""
    words: tuple[str, ...] = ()
    """Each is found in the run: how its id or its commit begins, its user, its job id, the value of a label, or a part
    of its name, of its host's, or of its workflow's, team's or owner's."""

    def query(self) -> dict[str, str | list[str]]:
        """As parameters of a request."""
        times = {"since": self.since_ns, "until": self.until_ns}
        texts = {name: _iso(value) for name, value in times.items() if value is not None}
        texts |= {field.name: value for field in fields(_Named) if (value := getattr(self, field.name))}
        labels = [f"{key}={value}" for key, value in self.labels]
        search = " ".join(f'"{word}"' if " " in word else word for word in self.words)
        return texts | ({"label": labels} if labels else {}) | ({"search": search} if search else {})


ALL = Filters()
"""Everything."""


@dataclass(frozen=True, kw_only=True)
class FilterTexts(_Named):
    """The same as people and programs write it; empty is missing."""

    since: str | None = None
    until: str | None = None
    label: Sequence[str] = ()
    search: str | None = None
    """Words, labels (`lr=3e-4`) and other filters (`host:gpu17`) in one line."""

    def read(self, *, zone: tzinfo | None, now: int | None = None) -> Filters:
        """What it means. States are for each list to judge.

        :param zone: of times that name none; None: this machine's.
        :raises Invalid: one of them is not such a value.
        """
        now = now_ns() if now is None else now
        if self.search:
            return self._searched(zone, now)
        since_ns = parse_time_ns("since", self.since, now=now, zone=zone) if self.since else None
        until_ns = parse_time_ns("until", self.until, now=now, zone=zone, ends_day=True) if self.until else None
        if since_ns is not None and until_ns is not None and until_ns <= since_ns:
            raise Invalid("until", self.until, f"a time after since, which is {self.since!r}")
        if len(self.label) > MOST_LABELS:
            raise Invalid("Number of labels", len(self.label), f"at most {MOST_LABELS}")
        commit = (self.commit or "").lower()
        if commit and not _COMMIT.fullmatch(commit):
            raise Invalid("commit", self.commit, "4 to 64 hexadecimal digits: a commit, or how it begins")
        if self.rule and not _RULE.fullmatch(self.rule):
            raise Invalid("rule", self.rule, "the name of a rule; `tightship rules` lists them")
        return Filters(
            since_ns=since_ns,
            until_ns=until_ns,
            state=self.state or None,
            fleet=imported_fleet(self.fleet),
            workflow=validation.optional_name("workflow", self.workflow),
            team=validation.optional_name("team", self.team),
            owner=validation.optional_name("owner", self.owner),
            user=validation.optional_name("user", self.user),
            host=validation.optional_name("host", self.host),
            job_id=validation.optional_name("job_id", self.job_id),
            commit=commit or None,
            rule=self.rule or None,
            labels=tuple(validation.label(text) for text in self.label),
        )

    def _searched(self, zone: tzinfo | None, now: int) -> Filters:
        """The filters with those of the search: `name:value` of a filter, `key=value` of a label, and words."""
        text = self.search or ""
        if len(text) > SEARCH_MAX:
            raise Invalid("search", text, f"at most {SEARCH_MAX} characters")
        given: dict[str, str] = {}
        labels, words = list(self.label), []
        for term in (found.replace('"', "") for found in _TERM.findall(text)):
            name, _, value = term.partition(":")
            name = {"job": "job_id"}.get(name, name)
            if name == "label" and value:
                labels.append(value)
            elif name in _IN_SEARCH and value:
                given[name] = value
            elif "=" in term:
                labels.append(term)
            elif term:
                words.append(validation.name("search", term))
        if len(words) > MOST_WORDS:
            raise Invalid("Number of words in search", len(words), f"at most {MOST_WORDS}")
        filters = replace(self, search=None, label=labels, **given).read(zone=zone, now=now)
        return replace(filters, words=tuple(words))


FIELDS = tuple(field.name for field in fields(FilterTexts))
"""Names of filters in queries; the command line writes a dash for the underscore."""
_IN_SEARCH = frozenset(FIELDS) - {"label", "search"}


def imported_fleet(text: str | None) -> str | None:
    """The imported fleet that is asked for; None: the live one.

    :raises Invalid: it is no name.
    """
    return None if text == LIVE else validation.optional_name("fleet", text)


def _iso(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, NS_PER_S)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000).isoformat()
