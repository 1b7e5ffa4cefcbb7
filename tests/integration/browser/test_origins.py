"""A page of another origin in a real browser: it uses the sidecar if that names it, else not."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from tests.integration.running import Start
from tests.integration.scripted_engine import ScriptedEngine

ASK = """async ([url, stream]) => {
  const response = await fetch(url + "/v1/chat/completions", {method: "POST",
    headers: {"Content-Type": "application/json", "Authorization": "Bearer mine"},
    body: JSON.stringify({model: "tiny", stream, messages: [{role: "user", content: "hi"}]})});
  const text = await response.text();
  return [response.status, response.headers.get("x-orch-request-id"), text.includes("choices")];
}"""


@pytest.mark.parametrize("stream", [False, True])
async def test_named_page_asks_reads_answers_and_headers(
    browser: Browser, start: Start, stream: bool
) -> None:
    other = await start()  # whose pages are of another origin
    running = await start(allowed_origins=[f"http://127.0.0.1:{other.port}"])
    page = await (await browser.new_context(bypass_csp=True)).new_page()
    await page.goto(f"http://127.0.0.1:{other.port}/metrics")
    status, own_id, answered = await page.evaluate(
        ASK, [f"http://127.0.0.1:{running.port}", stream]
    )
    assert (status, answered) == (200, True)
    assert len(own_id) == 32


async def test_other_page_cannot_ask(
    browser: Browser, start: Start, engine: ScriptedEngine
) -> None:
    other, running = await start(), await start(allowed_origins=["https://chat.example"])
    page = await (await browser.new_context(bypass_csp=True)).new_page()
    await page.goto(f"http://127.0.0.1:{other.port}/metrics")
    script = f"async (given) => {{ try {{ return await ({ASK})(given) }} catch {{ return null }} }}"
    assert await page.evaluate(script, [f"http://127.0.0.1:{running.port}", False]) is None
    assert engine.generating == []
