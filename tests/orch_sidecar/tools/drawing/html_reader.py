"""Reads a page back: its elements, its texts, and whether every element is closed."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A page as a browser's parser sees it. `tags`: each start tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.html = text
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:  # of the page: pictures have none
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of all elements of a name."""
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def charts(self) -> list[str]:
        """The titles of the figures, which are those of their pictures too."""
        titles = self.html.split("<figcaption><h3>")[1:]
        return [text.partition("</h3>")[0] for text in titles]

    def loads_nothing(self) -> bool:
        """Whether nothing runs in it, and nothing comes from elsewhere: a shape of a picture may
        be used again by its id."""
        names = {name for name, _ in self.tags}
        attributes = {name for _, found in self.tags for name in found}
        active = {"script", "link", "iframe", "object", "embed", "img", "image", "a"}
        handlers = {name for name in attributes if name.startswith("on")}
        targets = [value for _, found in self.tags for name, value in found.items()
                   if name in ("src", "href", "xlink:href")]  # fmt: skip
        ids = {f"#{found['id']}" for _, found in self.tags if "id" in found}
        return not (names & active or handlers or set(targets) - ids)
