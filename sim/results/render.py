"""Templates filled in: everything that comes from data is escaped, in HTML as in Markdown."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sim.results.page import Page
from sim.results.wording import visible

MARKDOWN_MARKS = frozenset("\\`*_{}[]|~$^!")
HTML_MARKS = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;", "#": "&#35;"}
FIRST_MARKS = frozenset("=+-")
"""They mean something at the beginning of a line or of a spreadsheet's cell."""


def markdown_text(text: str) -> str:
    """Foreign text that stays text in Markdown: no markup, no links, no mentions, no table cells, no formulas."""
    seen = visible(text)
    safe = "".join(HTML_MARKS.get(char, f"\\{char}" if char in MARKDOWN_MARKS else char) for char in seen)
    safe = safe.replace("://", "&#58;//").replace("www.", "www&#46;")
    return f"\\{safe}" if seen[:1] in FIRST_MARKS else safe


def _foreign(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Markup)


def _seen(value: Any) -> Any:
    """A number and its % stay on one line."""
    return visible(value).replace(" %", "\u00a0%") if _foreign(value) else value


def _marked_down(value: Any) -> Any:
    return markdown_text(value) if _foreign(value) else value


@cache
def _html() -> Environment:
    return Environment(loader=PackageLoader("sim.results"), autoescape=True, undefined=StrictUndefined,
                       finalize=_seen, trim_blocks=True, lstrip_blocks=True)  # fmt: skip


@cache
def _markdown() -> Environment:
    """`finalize` escapes every value; HTML's escaping comes with it."""
    return Environment(loader=PackageLoader("sim.results"), autoescape=False, undefined=StrictUndefined,
                       finalize=_marked_down, trim_blocks=True, lstrip_blocks=True)  # fmt: skip


def filled(template: str, **values: Any) -> str:
    """One of the templates, by its suffix in HTML or in Markdown."""
    environment = _markdown() if template.endswith(".md") else _html()
    return environment.get_template(template).render(**values)


def html(page: Page) -> str:
    return filled("report.html", page=page, scenario=preformatted(page.scenario))


def markdown(page: Page) -> str:
    return filled("report.md", page=page)


def preformatted(text: str) -> Markup:
    """JSON keeps its line breaks; it has no other control characters."""
    return Markup.escape(text)
