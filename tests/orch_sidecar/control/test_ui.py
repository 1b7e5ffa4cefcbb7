"""The files of the page: what is served, and that they are what their policy allows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from orch_sidecar.api.endpoints import UI_FILES
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.control import pages
from orch_sidecar.control.pages import redirect_to_ui, ui_files

ROOT = Path(__file__).parents[3]

FOLDER = ROOT / "orch_sidecar" / "ui"
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


@pytest.mark.parametrize("path", UI_FILES)
def test_each_file_is_served_as_it_is_under_a_policy_without_inline_script(path: str) -> None:
    file = FOLDER / UI_FILES[path]
    response = ui_files()[path](make_mocked_request("GET", path), None)
    assert isinstance(response, web.Response)
    assert response.body == file.read_bytes()
    assert response.content_type == TYPES[file.suffix[1:]]
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_every_file_of_the_folder_is_served() -> None:
    files = {each.name for each in FOLDER.iterdir() if each.is_file()}
    assert files == set(UI_FILES.values())


def test_page_loads_nothing_from_elsewhere_and_has_no_inline_script_or_style() -> None:
    """What the policy would block, a browser would silently leave out."""
    page = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\bstyle=|\bon\w+=", page) == []
    loaded = re.findall(r"(?:src|href)=\"([^\"]*)\"", page)
    assert "ui/app.js" in loaded
    # Relative, so that a proxy may serve the page below a path.
    assert [each for each in loaded if re.match(r"(?!data:)\w+:|/", each)] == []
    for script in FOLDER.glob("*.js"):
        text = script.read_text()
        assert re.findall(r"\beval\(|(inner|outer|Adjacent)HTML|document\.write", text) == []
        assert set(re.findall(r"https?://[^\"\s]*", text)) <= {"http://www.w3.org/2000/svg"}


def test_installation_without_the_files_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "_UI_FOLDER", tmp_path)
    refusal = ui_files()["/ui"](make_mocked_request("GET", "/ui"), None)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NOT_FOUND
    assert "orch_sidecar/ui" in refusal.message


@pytest.mark.parametrize(
    ("accept", "sent"),
    [("text/html,application/xhtml+xml,*/*;q=0.8", True), ("application/json", False),
     ("*/*", False), ("", False)],
)  # fmt: skip
def test_browser_is_sent_from_the_root_to_the_page_and_no_other_client(
    accept: str, sent: bool
) -> None:
    response = redirect_to_ui(make_mocked_request("GET", "/", headers={"Accept": accept}))
    assert (response is not None) is sent
    if response is not None:
        assert (response.status, response.headers["Location"]) == (307, "ui")
