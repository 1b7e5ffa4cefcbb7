"""Builds HTML as a tree, and writes it.

Texts and attributes become markup only here, by the standard library's serializer: a model's name
that looks like a tag is shown as it is. Characters that would hide or reorder a text are replaced.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element, tostring

# Control characters, marks and overrides of the direction of writing, halves of surrogate pairs.
_NOT_SHOWN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\ufffe\uffff]"
)
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

Child = Element | str


def element(tag: str, *children: Child, **attributes: str) -> Element:
    """Returns an element. In the names of attributes `_` stands for `-`; a last `_` is dropped."""
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    made = Element(tag, {name: shown(value) for name, value in names.items()})
    return add(made, *children)


def add(parent: Element, *children: Child) -> Element:
    """Appends elements and texts to an element, and returns it."""
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + shown(child)
        else:
            parent.text = (parent.text or "") + shown(child)
    return parent


def shown(text: str) -> str:
    """Replaces the characters that no page can show."""
    return _NOT_SHOWN.sub(_REPLACEMENT, text)


def html_of(root: Element) -> str:
    """Returns the document of its root element."""
    return f"<!DOCTYPE html>\n{tostring(root, encoding='unicode', method='html')}\n"
