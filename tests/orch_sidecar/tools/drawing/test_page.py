"""The page: one file that loads nothing, in which text stays text; its words for a terminal."""

from __future__ import annotations

import sys

import pytest

from orch_sidecar.tools.drawing import page as pages
from orch_sidecar.tools.drawing.chart import Marked, Series, by_size
from orch_sidecar.tools.drawing.texts import element, html_of
from tests.orch_sidecar.tools.drawing.html_reader import Page

HOSTILE = """<script>alert(1)</script>"'&<img src=x onerror=alert(1)>]]>--></style></title>"""
SERIES = [Series(HOSTILE, [1, 2], [3, 4]), Series("other", [1, 2], [4, 5])]
CHART = by_size(HOSTILE, HOSTILE, HOSTILE, HOSTILE, SERIES, True, Marked(HOSTILE, 1.5))


def written() -> pages.Page:
    page = pages.Page(HOSTILE)
    page.text(pages.badge(HOSTILE, "good"), HOSTILE)
    page.list([HOSTILE], HOSTILE, "bad")
    page.section(HOSTILE)
    page.charts([CHART, CHART])
    page.charts([CHART])
    page.table((HOSTILE, HOSTILE), [(HOSTILE, HOSTILE)], kinds={HOSTILE: "good"})
    page.facts({HOSTILE: {HOSTILE: HOSTILE}})
    page.list([HOSTILE])
    page.remark(HOSTILE)
    return page


def test_page_shows_every_text_as_it_is_and_loads_nothing() -> None:
    page = Page(written().html)
    assert page.loads_nothing()
    texts = [text for text in page.texts if text.strip() == HOSTILE]
    assert len(texts) == 13 + 3 * 7, "a picture: title and words twice, axes"
    [policy] = [each for each in page.all("meta") if "http-equiv" in each]
    assert policy["content"].startswith("default-src 'none'")


def test_ids_of_pictures_are_their_own() -> None:
    ids = [each["id"] for _, each in Page(written().html).tags if "id" in each]
    assert len(ids) == len(set(ids)) >= 6


def test_page_has_one_heading_and_names_the_cells_of_tables() -> None:
    page = Page(written().html)
    assert len(page.all("h1")) == 1
    assert page.all("html") == [{"lang": "en"}]
    assert all(each["scope"] in ("row", "col") for each in page.all("th"))


def test_terminal_has_texts_and_tables_and_headings_of_what_it_shows() -> None:
    page = pages.Page("title")
    page.section("pictures only")
    page.charts([CHART])
    page.section("figures")
    page.text(pages.badge("valid", "good"), ": a text")
    page.remark("an explanation")
    page.table(("name", "n"), [("a", "10"), ("longer", "9")])
    page.list(["this"], "Why", "warn")
    assert page.plain.splitlines() == [
        "title", "", "figures", "valid: a text", "name     n", "a       10", "longer   9", "Why:",
        "  this",
    ]  # fmt: skip


def test_names_do_not_control_a_terminal_and_what_is_empty_leaves_nothing() -> None:
    page = pages.Page("tiny\x1b]0;a\x07")
    page.text("a model\u202e")
    page.list([])
    page.charts([])
    assert page.plain == "tiny\ufffd]0;a\ufffd\na model\ufffd"
    assert not {"ul", "div"} & {name for name, _ in Page(page.html).tags}


def test_words_need_no_matplotlib_and_pictures_name_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = written()
    assert HOSTILE in page.plain
    with pytest.raises(ValueError, match="pip install matplotlib"):
        _ = page.html


def test_texts_and_attributes_are_escaped() -> None:
    page = Page(html_of(element("p", HOSTILE, element("b", HOSTILE), HOSTILE, title=HOSTILE)))
    assert page.loads_nothing()
    assert [name for name, _ in page.tags] == ["p", "b"]
    assert page.all("p") == [{"title": HOSTILE}]
    assert "".join(page.texts).strip() == HOSTILE * 3


@pytest.mark.parametrize("hidden", ["\x00", "\x1b[31m", "\u202e", "\ud800", "\u2066", "\x9b"])
def test_characters_that_hide_or_reorder_text_are_replaced(hidden: str) -> None:
    text = html_of(element("p", f"a{hidden}b", title=hidden))
    assert hidden[0] not in text
    assert "\N{REPLACEMENT CHARACTER}" in text
    text.encode("utf-8")


def test_texts_after_elements_stay_in_their_order_and_names_of_attributes_have_dashes() -> None:
    made = element("p", "a", element("b", "c"), "d", "e", class_="x", aria_hidden="true")
    assert "".join(made.itertext()) == "acde"
    assert made.attrib == {"class": "x", "aria-hidden": "true"}
