"""Text and elements of a page. What comes from a trace can only enter as text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from tightship_platform.text import shown
from tightship_platform.units import unbroken

NAME_CHARS = 300
_VERBATIM = ("code", "pre")


class Markup(str):
    """HTML that is known to be sound; any other string is text and gets escaped."""

    __slots__ = ()


Content = Markup | str | int | None | Sequence["Content"]


def text(value: Content, limit: int = NAME_CHARS, *, verbatim: bool = False) -> Markup:
    """Content as HTML: strings escaped and bounded, control and direction characters as `?`, None as nothing.

    :param verbatim: as it may be copied; otherwise no line breaks between a number and its unit.
    """
    if value is None:
        return Markup("")
    if isinstance(value, Markup):
        return value
    if isinstance(value, str | int):
        said = shown(str(value), limit)
        return Markup(html.escape(said if verbatim else unbroken(said), quote=True))
    return Markup("".join(text(part, limit, verbatim=verbatim) for part in value))


def element(tag: str, content: Content = None, /, **attributes: str | int | None) -> Markup:
    """`<tag attribute="…">content</tag>`; an underscore in an attribute's name stands for a hyphen, `class_` for
    `class`; attributes that are None are left out."""
    said = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value, verbatim=True)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{said}>{text(content, verbatim=tag in _VERBATIM)}</{tag}>")


def table(
    head: Sequence[str], rows: Iterable[Sequence[Content]], *, left: Sequence[int] = (0,), caption: str
) -> Markup:
    """A table that scrolls by itself where the window is narrow; columns stand right but those in `left`."""

    def side(column: int) -> str | None:
        return "left" if column in left else None

    cells = [element("th", name, scope="col", class_=side(column)) for column, name in enumerate(head)]
    body = [
        element("tr", [element("td", cell, class_=side(column)) for column, cell in enumerate(row)]) for row in rows
    ]
    inside = [
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", cells)),
        element("tbody", body),
    ]
    return element("div", element("table", inside), class_="wide", tabindex="0", role="group", aria_label=caption)


def bar(parts: Iterable[tuple[str, float, str]], *, label: str) -> Markup:
    """Shares (class, 0..1, title) side by side."""
    pieces = [
        element("i", None, class_=f"fill {name}", style=f"width:{100 * share:.3f}%", title=title)
        for name, share, title in parts
        if share > 0
    ]
    return element("div", pieces, class_="bar", role="img", aria_label=label)
