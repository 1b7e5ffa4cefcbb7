"""Text that is written as markup stays text."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.drawing.texts import element, html_of
from tests.orch_sidecar.tools.drawing.html_reader import Page

HOSTILE = """<script>alert(1)</script>"'&<img src=x onerror=alert(1)>]]>--></style></title>"""


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


def test_texts_after_elements_stay_in_their_order() -> None:
    made = element("p", "a", element("b", "c"), "d", "e")
    assert "".join(made.itertext()) == "acde"


def test_names_of_attributes_have_dashes() -> None:
    assert element("g", class_="x", aria_hidden="true").attrib == {
        "class": "x",
        "aria-hidden": "true",
    }
