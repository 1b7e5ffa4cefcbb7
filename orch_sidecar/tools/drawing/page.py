"""A page that grows from top to bottom: one HTML file, and its words on a terminal.

The file has no scripts and loads nothing. A terminal gets the texts, notes, lists and tables; what
needs a picture, or only explains one, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, count
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element

from orch_sidecar.tools.drawing.chart import Chart
from orch_sidecar.tools.drawing.picture import element_of
from orch_sidecar.tools.drawing.texts import NONE, aligned, element, html_of, shown, value_text

# The page loads nothing, whatever a name in it contains.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

# The head of each column of a table, and the text of a thing in it.
Columns = Sequence[tuple[str, Callable[..., str]]]


class Page:
    """A page with its title. Charts are drawn when `html` is asked for."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[Element | Sequence[Chart]] = [element("h1", title)]
        self._lines = [title]
        self._heading = ""

    @property
    def html(self) -> str:
        """The whole file. Raises what `picture.require` raises, if it has charts."""
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", **{"http-equiv": "Content-Security-Policy"}, content=_POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", self._title),
            element("style", Path(__file__).with_name("page.css").read_text(encoding="utf-8")),
        )
        main, numbers = element("main"), count()
        for part in self._parts:
            if isinstance(part, Element):
                main.append(part)
            else:
                main.append(element("div", *map(_figure, part, numbers), class_="figures"))
        return html_of(element("html", head, element("body", main), lang="en"))

    @property
    def plain(self) -> str:
        """Its words, for a terminal."""
        return shown("\n".join(self._lines))

    def section(self, title: str) -> None:
        """Begins a section; a terminal shows the title of one that has words."""
        self._parts.append(element("h2", title))
        self._heading = title

    def text(self, *parts: Element | str) -> None:
        """Appends a paragraph."""
        self._parts.append(element("p", *parts))
        self._say("".join(each if isinstance(each, str) else each.text or "" for each in parts))

    def remark(self, text: str) -> None:
        """Appends a paragraph that explains, which a terminal leaves out."""
        self._parts.append(element("p", text, class_="soft"))

    def list(self, lines: Iterable[str], title: str = "", kind: str = "") -> None:
        """Appends lines as a list, with a title as a note that stands out; nothing without lines.
        `kind`: good, warn or bad."""
        if not (found := [*lines]):
            return
        listed = element("ul", *(element("li", line) for line in found))
        if title:
            listed = element("div", element("strong", title), listed, class_=f"note {kind}")
            self._say(f"{title}:")
        self._parts.append(listed)
        self._say(*(f"  {line}" for line in found))

    def charts(self, charts: Iterable[Chart], title: str = "") -> None:
        """Appends charts, side by side where there is place, in a section of this title if it has
        one; nothing without a chart."""
        if found := list(charts):
            if title:
                self.section(title)
            self._parts.append(found)

    def table(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[str]],
        texts: int = 1,
        kinds: Mapping[str, str] = {},
        otherwise: str = "",
    ) -> None:
        """Appends a table, or the text `otherwise` without rows.

        `texts`: the columns from the left that have texts, not numbers. `kinds`: the cells that
        stand out, and whether they are good, warn or bad.
        """
        if not (found := list(rows)):
            self.text(otherwise)
            return

        def cell(tag: str, at: int, text: str, **more: str) -> Element:
            look = {} if at < texts else {"class": "number"}
            child = element("span", text, class_=kinds[text]) if text in kinds else text
            return element(tag, child, **look, **more)

        heads = (cell("th", at, text, scope="col") for at, text in enumerate(head))
        body = element("tbody")
        for first, *others in found:
            cells = (cell("td", at, text) for at, text in enumerate(others, 1))
            body.append(element("tr", element("th", first, scope="row"), *cells))
        made = element("table", element("thead", element("tr", *heads)), body)
        self._parts.append(element("div", made, class_="wide", tabindex="0"))
        self._say(*aligned(head, found, texts))

    def columns(self, columns: Columns, things: Iterable[Sequence[Any]], texts: int = 1) -> None:
        """Appends a table with a row for each thing, without the columns that none of them has;
        nothing without things. `texts`: of all columns."""
        if not (found := list(things)):
            return
        cells = [[head, *(text(*each) for each in found)] for head, text in columns]
        known = [bool({*each[1:]} - {NONE, ""}) for each in cells]
        head, *rows = zip(*compress(cells, known), strict=True)
        self.table(head, rows, sum(known[:texts]))

    def facts(self, groups: Mapping[str, Mapping[str, object]]) -> None:
        """Appends documents with their titles, side by side where there is place."""
        columns = element("div", class_="columns")
        for title, document in groups.items():
            body = element("tbody")
            for name, value in document.items():
                head = element("th", name.replace("_", " "), scope="row")
                body.append(
                    element("tr", head, element("td", value_text(name, value) or "unknown"))
                )
            table = element("table", body, class_="facts")
            columns.append(element("div", element("h3", title), table))
        self._parts.append(columns)

    def _say(self, *lines: str) -> None:
        if self._heading:
            self._lines += ["", self._heading]
            self._heading = ""
        self._lines += lines


def _figure(chart: Chart, number: int) -> Element:
    caption = element("figcaption", element("h3", chart.title), element("p", chart.about))
    return element("figure", caption, element_of(chart, number))


def badge(text: str, kind: str) -> Element:
    """Returns a word in a frame. `kind`: good, warn or bad."""
    return element("span", text, class_=f"badge {kind}")
