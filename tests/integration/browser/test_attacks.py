"""Pages of others in a real browser: none reaches a listener of the loopback.

What the listener itself refuses is in `test_admin`; here is what a browser lets through.
"""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from tests.integration.browser.test_page import operators
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.long


async def test_page_whose_name_was_made_to_resolve_to_the_loopback_gets_nothing(
    browser: Browser, sidecar: Running
) -> None:
    """To the browser it is this listener's own origin (DNS rebinding)."""
    page = await browser.new_page()
    await page.goto(operators(sidecar).replace("127.0.0.1", "evil.example"))
    assert "forbidden" in await page.locator("body").inner_text()
    status = await page.evaluate(
        """async () => (await fetch("v1/pools/cloud/drain", {method: "POST", body: "{}", headers:
        {"Content-Type": "application/json", "X-Orch-Operator": "true"}})).status"""
    )
    assert status == 403
    assert not sidecar.pool.admission.draining


async def test_such_a_page_gets_nothing_of_the_clients_listener_either(
    browser: Browser, sidecar: Running, engine: ScriptedEngine
) -> None:
    page = await browser.new_page()
    await page.goto(f"http://evil.example:{sidecar.port}/ui")
    assert "forbidden" in await page.locator("body").inner_text()
    status = await page.evaluate(
        """async () => (await fetch("/v1/chat/completions", {method: "POST", body:
        JSON.stringify({model: "tiny", messages: [{role: "user", content: "hi"}]}), headers:
        {"Content-Type": "application/json"}})).status"""
    )
    assert status == 403
    assert engine.generating == []


@pytest.mark.parametrize("origin", ["http", "opaque"])
async def test_page_of_another_origin_can_neither_read_nor_drain(
    browser: Browser, sidecar: Running, origin: str
) -> None:
    target = f"http://127.0.0.1:{sidecar.sidecar.admin_port}"
    page = await (await browser.new_context(bypass_csp=True)).new_page()
    # The clients' listener is another origin: it plays the page that an operator visits.
    await page.goto(
        f"http://127.0.0.1:{sidecar.port}/metrics" if origin == "http" else "about:blank"
    )
    for mode, content_type in (("no-cors", "text/plain"), ("cors", "application/json")):
        await page.evaluate(
            """([url, mode, type]) => fetch(url, {method: "POST", mode, body: "{}",
            headers: {"Content-Type": type}}).catch(() => null)""",
            [f"{target}/v1/pools/cloud/drain", mode, content_type],
        )
    read = await page.evaluate(
        "url => fetch(url).then((response) => response.text()).catch(() => 'refused')",
        f"{target}/v1/capabilities",
    )
    assert read == "refused"
    assert not sidecar.pool.admission.draining


async def test_no_page_can_frame_this_one(browser: Browser, sidecar: Running) -> None:
    page = await (await browser.new_context(bypass_csp=True)).new_page()
    await page.goto(f"http://127.0.0.1:{sidecar.port}/metrics")
    await page.set_content(f'<iframe src="{operators(sidecar)}"></iframe>')
    frames = [frame for frame in page.frames if frame != page.main_frame]
    assert [await frame.locator("#main").count() for frame in frames] in ([0], [])
