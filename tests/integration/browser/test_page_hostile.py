"""The page with what others wrote: names that are markup, ids that are alike, slots without end.

Pages of others in a real browser: none reaches a listener of the loopback. What the listener itself
refuses is in `test_admin`; here is what a browser lets through.
"""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Browser, Route, expect

from tests.integration.browser.conftest import Open
from tests.integration.browser.test_page import SOON_MS, WORKED, operators
from tests.integration.held import Held, started
from tests.integration.live import Readers
from tests.integration.running import Running, Start, all_ready, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine

pytestmark = pytest.mark.long

MARKUP = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


async def test_markup_is_text_and_an_engine_of_100_000_slots_does_not_hold_up_the_page(
    open_page: Open, start: Start, another: Engine
) -> None:
    engine = await another(slots=100_000, models=("tiny", MARKUP))
    running = await all_ready(await start(**pools(cloud=engine)))
    engine.report(**WORKED | {"gpu": MARKUP})
    assert (await (await running.client()).post(model=MARKUP)).status == 200
    page = await open_page(operators(running))
    await expect(page.locator("[data-sub]")).to_contain_text(MARKUP, timeout=SOON_MS)
    await expect(page.locator("[data-used]")).to_contain_text("of 100,000 in use")
    await expect(page.locator("#requests-rows tr")).to_have_count(1)
    assert await page.locator("[data-cells] i").count() <= 512
    assert await page.locator("#main :is(img, script)").count() == 0


async def test_requests_whose_ids_begin_alike_have_their_own_rows(
    open_page: Open, start: Start, another: Engine
) -> None:
    """At the clients' listener ids are cut, and clients may choose their own."""
    engine = await another(slots=4)
    engine.answer = held = Held()
    running = await all_ready(await start(**pools(cloud=engine)))
    clients = [
        await started(running, seed=n, headers=[("X-Orch-Request-Id", f"{n:032x}")])
        for n in (1, 2, 3)
    ]
    page = await open_page(f"http://127.0.0.1:{running.port}/ui")
    rows = page.locator("#running-rows tr")
    await expect(rows).to_have_count(3, timeout=SOON_MS)
    held.release()
    await expect(rows).to_have_count(2)
    held.release_all()
    await expect(rows).to_have_count(0)
    for client in clients:
        assert (await client.response()).status == 200


async def test_keyboard_stays_in_the_table_whose_row_has_gone(
    open_page: Open, start: Start, another: Engine
) -> None:
    engine = await another(slots=4)
    engine.answer = held = Held()
    running = await all_ready(await start(**pools(cloud=engine)))
    clients = [await started(running, seed=seed) for seed in (1, 2)]
    page = await open_page(operators(running))
    rows = page.locator("#running-rows tr")
    await expect(rows).to_have_count(2, timeout=SOON_MS)
    await rows.first.get_by_role("button").press("Enter")
    await page.get_by_role("button", name="Cancel request", exact=True).press("Enter")
    await expect(rows).to_have_count(1)
    await expect(page.locator("#running-scroll")).to_be_focused()
    await rows.first.get_by_role("button").press("Enter")
    await page.get_by_role("button", name="Cancel request", exact=True).press("Enter")
    await expect(rows).to_have_count(0)
    await expect(page.locator("#main")).to_be_focused()
    assert [(await client.response()).status for client in clients] == [499, 499]
    assert not held.waiting


async def test_sidecar_that_refuses_the_stream_is_quoted(open_page: Open, start: Start) -> None:
    running = await start()
    page = await open_page("about:blank")
    body = '{"error": {"message": "64 state streams are open, which is the limit"}}'
    refusing = True

    async def refuse(route: Route) -> None:
        if refusing:
            await route.fulfill(status=429, body=body)
        else:
            await route.continue_()

    await page.route("**/v1/live", refuse)
    await page.goto(f"http://127.0.0.1:{running.port}/ui")
    notice = page.locator("#refused")
    await expect(notice).to_contain_text("64 state streams are open", timeout=SOON_MS)
    refusing = False
    await expect(notice).to_be_hidden(timeout=SOON_MS)
    await expect(page.locator(".badge")).to_have_text("ready", timeout=SOON_MS)


async def test_trace_of_a_request_is_not_that_of_one_before_the_restart(
    open_page: Open, start: Start
) -> None:
    """A sidecar numbers requests from 1 since its start."""
    running = await start()
    assert (await (await running.client()).post()).status == 200
    readers = Readers()
    document = await (await readers.open(running)).until(lambda each: each["requests"])
    await readers.close()
    runs = iter(("1", "2"))
    page = await open_page("about:blank")

    async def answer(route: Route) -> None:
        if (run := next(runs, None)) is None:
            await route.abort()
            return
        row = document["requests"][1] | {"trace_id": run * 32}
        sidecar = document["sidecar"] | {"run": run}
        snapshot = json.dumps(document | {"sidecar": sidecar, "requests": [row]})
        events = {"Content-Type": "text/event-stream"}
        await route.fulfill(headers=events, body=f"event: snapshot\ndata: {snapshot}\n\n")

    await page.route("**/v1/live", answer)
    await page.goto(f"http://127.0.0.1:{running.port}/ui")
    await expect(page.locator("#requests-rows td").last).to_have_text("2" * 8, timeout=SOON_MS)
    await page.unroute_all(behavior="wait")
    await page.close()


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
