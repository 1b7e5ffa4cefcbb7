"""The page around charts and tables: one file, without scripts, that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element

from orch_sidecar.tools.bench.drawing.chart import Chart, figure
from orch_sidecar.tools.bench.drawing.elements import Child, element, html_of

# The page loads nothing, whatever a name in it contains.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

# The colors of series are Okabe and Ito's, which the color-blind can tell apart.
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1a1d21;--soft:#5b6470;--rule:#d9dde2;--paper:#fff;
--card:#f5f7f9;--good:#0a7040;--warn:#8a5a00;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#a2abb6;--rule:#3a4149;--paper:#15181b;
--card:#1e2226;--good:#5bd197;--warn:#e5b454;--bad:#ff8a80}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--rule:#bbb;--paper:#fff;--card:#fff;
--good:#0a7040;--warn:#8a5a00;--bad:#b3261e}body{font-size:10pt}
figure,tr,.cards>div{break-inside:avoid}h2,h3{break-after:avoid}details>*{display:block}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.6em;line-height:1.25;margin:0 0 .2em;overflow-wrap:anywhere}
h2{font-size:1.2em;margin:2em 0 .6em;padding-top:.7em;border-top:1px solid var(--rule)}
h3{font-size:1em;margin:.8em 0 0;overflow-wrap:anywhere}
figure h3{margin:0}
p{margin:.3em 0;max-width:75ch;overflow-wrap:anywhere}
ul{margin:.3em 0;padding-left:1.3em}
li{overflow-wrap:anywhere}
.soft,figcaption p{color:var(--soft)}
figcaption p{font-size:.87em}
.badge{display:inline-block;padding:.05em .6em;border:1.5px solid;border-radius:1em;font-weight:600;
font-size:.87em;letter-spacing:.03em}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}
.note{border-left:4px solid;padding:.4em .9em;margin:.9em 0;background:var(--card)}
.note *{color:var(--ink)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:10px;
margin:1.2em 0}
.cards>div{background:var(--card);border:1px solid var(--rule);border-radius:6px;padding:.6em .7em}
.cards dt{color:var(--soft);font-size:.87em}
.cards dd{margin:0}
.cards b{font-size:1.35em;font-weight:600;font-variant-numeric:tabular-nums}
.cards .soft{display:block;font-size:.87em}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.5em 0}
th,td{padding:.28em .9em .28em 0;text-align:left;vertical-align:top;
border-bottom:1px solid var(--rule)}
th{font-weight:600}thead th{color:var(--soft);font-size:.87em}
.number,tbody th{white-space:nowrap}.number{text-align:right}.facts th{white-space:normal}
td{overflow-wrap:anywhere}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(300px,100%),1fr));gap:0 32px}
.facts{width:100%;font-size:.93em}
.facts th{width:9em;font-weight:400;color:var(--soft)}
.figures{display:grid;gap:24px 32px;
grid-template-columns:repeat(auto-fill,minmax(min(440px,100%),1fr))}
figure{margin:0}
.chart{width:100%;height:auto;display:block;margin-top:.4em}
.chart text{fill:var(--ink);font:12px system-ui,sans-serif;font-variant-numeric:tabular-nums}
.chart .tick,.chart .label{fill:var(--soft)}
.chart .name{font-size:11px;paint-order:stroke;stroke:var(--paper);stroke-width:4px}
.grid{stroke:var(--rule);fill:none}.axis{stroke:var(--soft);fill:none}
.mark{stroke:var(--ink);fill:none;stroke-width:1.2}
.bound{stroke:var(--bad);stroke-dasharray:6 3}
.line{stroke:var(--c);fill:none;stroke-width:1.8;stroke-linejoin:round}
.joining{stroke:var(--c);fill:none;stroke-opacity:.45}
.dashed{stroke-dasharray:5 4}
.bars{fill:var(--c);fill-opacity:.75}
.dots{fill:var(--c)}.hollow{fill:var(--paper);stroke:var(--c);stroke-width:1.5}
.s0{--c:#0072b2}.s1{--c:#d55e00}.s2{--c:#009e73}.s3{--c:#cc79a7}.s4{--c:#e69f00}
@media(prefers-color-scheme:dark){.s0{--c:#56b4e9}}
@media print{.s0{--c:#0072b2}main{max-width:none;padding:0}.figures{grid-template-columns:1fr 1fr}
.columns{grid-template-columns:repeat(3,1fr)}.facts{font-size:.82em}.facts th{width:7em}}
.legend{list-style:none;padding:0;margin:.3em 0 0;display:flex;flex-wrap:wrap;gap:.1em 1.2em;
font-size:.87em}
.legend li{display:flex;align-items:center;gap:.45em}
.sample{width:24px;height:10px;flex:none}
@media(max-width:560px){table{font-size:.87em}th,td{padding-right:.5em}
tbody th,thead .number{white-space:normal}}
"""


_NUMBER: Final = {"class": "number"}


@dataclass(frozen=True, slots=True)
class Card:
    """One figure that a reader looks for first. `more`: its interval, or what it is made of."""

    name: str
    value: str
    unit: str = ""
    more: str = ""


class Page:
    """A page that grows from top to bottom."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._main = element("main", element("h1", title))
        self._figures = 0

    @property
    def html(self) -> str:
        """The whole file."""
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", **{"http-equiv": "Content-Security-Policy"}, content=_POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", self._title),
            element("style", _STYLE),
        )
        return html_of(element("html", head, element("body", self._main), lang="en"))

    def add(self, *children: Element) -> None:
        """Appends elements."""
        self._main.extend(children)

    def section(self, title: str) -> None:
        """Begins a section."""
        self.add(element("h2", title))

    def list(self, lines: Iterable[str]) -> None:
        """Appends lines as a list, nothing without lines."""
        found = [element("li", line) for line in lines]
        if found:
            self.add(element("ul", *found))

    def text(self, *parts: Child, soft: bool = False) -> None:
        """Appends a paragraph."""
        self.add(element("p", *parts, **({"class": "soft"} if soft else {})))

    def note(self, kind: str, title: str, lines: Iterable[str]) -> None:
        """Appends a note that stands out. `kind`: good, warn or bad."""
        listed = element("ul", *(element("li", line) for line in lines))
        self.add(element("div", element("strong", title), listed, class_=f"note {kind}"))

    def cards(self, cards: Iterable[Card]) -> None:
        """Appends the figures that a reader looks for first."""
        self.add(element("dl", *map(_card, cards), class_="cards"))

    def charts(self, charts: Sequence[Chart]) -> None:
        """Appends charts, side by side where there is place."""
        figures = []
        for chart in charts:
            self._figures += 1
            figures.append(figure(chart, self._figures))
        self.add(element("div", *figures, class_="figures"))

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Child]], texts: int = 1) -> None:
        """Appends a table. `texts`: the columns from the left that have texts, not numbers."""
        kind = [dict[str, str]() if at < texts else _NUMBER for at in range(len(head))]
        named = [element("th", cell, scope="col", **kind[at]) for at, cell in enumerate(head)]
        body = [
            element(
                "tr",
                element("th", row[0], scope="row"),
                *(element("td", cell, **kind[at]) for at, cell in enumerate(row[1:], 1)),
            )
            for row in rows
        ]
        made = element("table", element("thead", element("tr", *named)), element("tbody", *body))
        self.add(element("div", made, class_="wide", tabindex="0"))

    def facts(self, groups: Mapping[str, Iterable[tuple[str, str]]]) -> None:
        """Appends groups of names and their texts, side by side where there is place."""
        self.add(element("div", *(_facts(*group) for group in groups.items()), class_="columns"))


def _facts(title: str, rows: Iterable[tuple[str, str]]) -> Element:
    made = [
        element("tr", element("th", name, scope="row"), element("td", text)) for name, text in rows
    ]
    table = element("table", element("tbody", *made), class_="facts")
    return element("div", element("h3", title), table)


def colored(text: str, kind: str) -> Element:
    """Returns a text in the color of its kind: good, warn or bad; in none of another."""
    return element("span", text, class_=kind)


def badge(text: str, kind: str) -> Element:
    """Returns a word in a frame. `kind`: good, warn or bad."""
    return element("span", text, class_=f"badge {kind}")


def _card(card: Card) -> Element:
    value = element("dd", element("b", card.value), f" {card.unit}" if card.unit else "")
    if card.more:
        value.append(element("span", card.more, class_="soft"))
    return element("div", element("dt", card.name), value)
