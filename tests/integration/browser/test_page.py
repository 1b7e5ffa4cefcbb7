"""The page in a real browser: it shows what the engines do, and operators can act on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from tests.integration.batches.batching import Batches, some
from tests.integration.browser.conftest import Open
from tests.integration.client import CHAT
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import STEP_TIME, Engine, ScriptedEngine
from tests.integration.scripts import endless

# An engine that has worked.
WORKED: dict[str, Any] = {
    "steps_by_batch": {"1": [40, 0.44], "4": [80, 1.12], "8": [120, 2.16]},
    "last_batches": [1] * 20 + [4] * 40 + [8] * 60,
    "step_time": STEP_TIME,
    "kv_cache_usage": 0.31,
    "gpu": "CPU (scripted)",
}
PHONE = {"viewport": {"width": 375, "height": 740}}
SOON_MS = 20_000
# Remembers each cell of the slots that is not drawn in the colour of the legend from the moment at
# which it changes.
WATCH_CELLS = """() => {
  window.wrong = [], window.changed = 0;
  const cells = document.querySelector("[data-cells]");
  new MutationObserver((changes) => changes.forEach(({ target: cell }) => {
    const item = document.querySelector(`[data-legend] [data-slot="${cell.dataset.slot}"]`);
    const colours = [getComputedStyle(cell), getComputedStyle(item, "::before")]
      .map((style) => style.backgroundColor);
    window.changed += 1;
    if (colours[0] !== colours[1]) window.wrong.push([cell.dataset.slot, ...colours]);
  })).observe(cells, { attributes: true, attributeFilter: ["data-slot"], subtree: true });
}"""


def operators(running: Running) -> str:
    return f"http://127.0.0.1:{running.sidecar.admin_port}/ui"


async def assert_accessible(page: Page) -> None:
    """No violation of WCAG that axe-core finds, and nothing wider than the window."""
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    width, window = await page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert width <= window


async def test_operator_sees_every_stream_in_a_slot_and_the_queue_and_acts_on_them(
    open_page: Open, start: Start, another: Engine
) -> None:
    engine = await another(slots=8)
    engine.answer = held = Held()
    running = await all_ready(await start(**pools(cloud=engine)))
    engine.report(**WORKED)
    page = await open_page(operators(running))
    cells = page.locator("[data-cells] i")
    await expect(cells).to_have_count(8, timeout=SOON_MS)
    await expect(page.locator("[data-type]")).to_have_text("batched online")
    busy = [await started(running, seed=seed) for seed in range(8)]
    await expect(page.locator('[data-cells] i[data-slot="interactive"]')).to_have_count(8)
    # Bulk requests wait as long as a busy machine needs; interactive ones have an SLO.
    bulk = [("X-Orch-Class", "bulk")]
    waiting = [await started(running, seed=seed, headers=bulk) for seed in (8, 9)]
    await expect(page.locator("#queue-rows tr")).to_have_count(2)
    await expect(page.locator("[data-waits]")).to_contain_text("a slot: all 8 are in use")
    await assert_accessible(page)

    await page.locator("#queue-rows tr").first.get_by_role("button").click()
    await page.get_by_role("button", name="Cancel request", exact=True).click()
    assert (await waiting.pop(0).response()).status == 499
    await expect(page.locator("#queue-rows tr")).to_have_count(1)
    await expect(page.locator("#requests-rows")).to_contain_text("cancelled")

    # By keyboard alone; what is not confirmed is not done.
    drain = page.get_by_role("button", name="Drain the pool cloud")
    await drain.press("Enter")
    await page.keyboard.press("Escape")
    assert not running.pool.admission.draining
    await drain.press("Enter")
    await page.get_by_role("button", name="Drain", exact=True).press("Enter")
    await expect(page.locator(".badge")).to_have_text("draining")
    await page.get_by_role("button", name="Resume the pool cloud").press("Enter")
    await expect(page.locator(".badge")).to_have_text("ready")

    held.release_all()
    await eventually(lambda: held.waiting)
    held.release_all()
    for client in (*busy, *waiting):
        assert (await client.response()).status == 200
    await expect(page.locator("#requests-rows tr")).to_have_count(10)
    await expect(page.locator('[data-cells] i[data-slot="free"]')).to_have_count(8)


async def test_slots_are_drawn_in_the_colours_of_the_legend_at_once(
    open_page: Open, start: Start, engine: ScriptedEngine
) -> None:
    engine.answer = held = Held()
    running = await start()
    bulk = await started(running, headers=[("X-Orch-Class", "bulk")])
    page = await open_page(operators(running))
    first = page.locator("[data-cells] i").first
    await expect(first).to_have_attribute("data-slot", "bulk", timeout=SOON_MS)
    await page.evaluate(WATCH_CELLS)
    interactive = await started(running)
    await expect(first).to_have_attribute("data-slot", "interactive")
    held.release_all()
    assert [(await each.response()).status for each in (bulk, interactive)] == [200, 200]
    await expect(first).to_have_attribute("data-slot", "free")
    assert await page.evaluate("window.changed") >= 3
    assert await page.evaluate("window.wrong") == []


async def test_page_says_only_what_is_known_of_answers_and_of_the_engine(
    open_page: Open, start: Start, engine: ScriptedEngine
) -> None:
    running = await start()
    client = await running.client()
    assert (await client.post(CHAT)).status == 200
    held = Held()
    engine.scripts += [held, held, endless]
    quiet = await started(running, seed=1)
    await eventually(lambda: len(held.waiting) == 1)
    reading, generating = await running.client(), await running.client()
    reading.start(CHAT, stream=True, seed=2)
    await eventually(lambda: len(held.waiting) == 2)
    generating.start(CHAT, stream=True, seed=3)
    engine.report(**WORKED | {"step_time": STEP_TIME | {"quality": "poor"}})
    page = await open_page(operators(running))
    states = page.locator("#running-rows td:nth-child(6)")
    await expect(states).to_have_text(["runs", "reads its prompt", "generates"], timeout=SOON_MS)
    speed = page.locator("[data-speed] tr").first.locator("td")
    await expect(speed.nth(1)).to_have_text("1")
    await expect(speed.nth(2)).not_to_have_text("0")
    await expect(speed.nth(3)).to_have_text("\u2013")
    await expect(page.locator("[data-fit]")).to_have_text("not yet sure")
    await expect(page.locator("[data-curve] .point")).not_to_have_count(0)
    await expect(page.locator("[data-curve] .fit")).to_have_count(0)
    await assert_accessible(page)
    engine.report(**WORKED)
    await expect(page.locator("[data-fit]")).to_have_text("10.0 + 1.00 · b^1.00 ms")
    await expect(page.locator("[data-curve] .fit")).to_have_count(1)
    held.release_all()
    assert (await quiet.response()).status == 200
    await generating.close()


async def test_question_asked_again_at_once_is_answered(
    open_page: Open, start: Start, engine: ScriptedEngine
) -> None:
    """The browser reports that a dialog was closed only later, when it may be open again."""
    running = await start(**pools(cloud=engine))
    page = await open_page(operators(running))
    drain = page.get_by_role("button", name="Drain the pool cloud")
    await expect(drain).to_be_enabled(timeout=SOON_MS)
    await drain.evaluate(
        "button => { button.click(); document.getElementById('confirm').close(); button.click(); }"
    )
    await page.evaluate("() => new Promise(requestAnimationFrame)")
    await page.get_by_role("button", name="Drain", exact=True).click()
    await expect(page.locator(".badge")).to_have_text("draining")


async def test_operator_reaches_each_cancel_on_a_phone_without_scrolling(
    open_page: Open, start: Start, engine: ScriptedEngine, held: Held, tmp_path: Path
) -> None:
    keys = KeyRing(tmp_path)
    keys.add("reports-of-the-night")
    running = await start(api_keys_file=keys.path)
    page = await open_page(operators(running), **PHONE)
    clients = [
        await started(running, seed=seed, headers=[keys.bearer("reports-of-the-night")])
        for seed in range(engine.slots + 1)
    ]
    for rows in ("running", "queue"):
        button = page.locator(f"#{rows}-rows button").first
        await expect(button).to_be_visible(timeout=SOON_MS)
        box = await button.bounding_box()
        assert box is not None
        frame = await page.locator(f"#{rows}-scroll").bounding_box()
        assert frame is not None
        assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 0.5, rows
    await assert_accessible(page)
    await page.locator("#queue-rows button").first.click()
    await page.get_by_role("button", name="Cancel request", exact=True).click()
    assert (await clients.pop().response()).status == 499
    held.release_all()
    for client in clients:
        assert (await client.response()).status == 200


async def test_page_survives_a_restart_of_the_engine_and_of_the_sidecar(
    open_page: Open, start: Start, engine: ScriptedEngine
) -> None:
    running = await start()
    port = running.port
    page = await open_page(f"http://127.0.0.1:{port}/", color_scheme="dark", **PHONE)
    assert page.url == f"http://127.0.0.1:{port}/ui"
    live, badge = page.locator("#live"), page.locator(".badge")
    await expect(badge).to_have_text("ready", timeout=SOON_MS)
    await expect(page.get_by_role("button", name="Drain the pool")).to_have_count(0)
    await engine.stop()
    await expect(badge).to_have_text("down", timeout=SOON_MS)
    await expect(page.locator("[data-outage]")).to_contain_text("Start the engine again")
    await assert_accessible(page)
    await engine.start()
    await expect(badge).to_have_text("ready", timeout=SOON_MS)
    await running.stop()
    await expect(live).to_have_text("Connection lost: trying again", timeout=SOON_MS)
    running = await start(port=port)
    await expect(live).to_have_text("Live", timeout=SOON_MS)
    assert (await (await running.client()).post()).status == 200
    await expect(page.locator("#requests-rows tr")).to_have_count(1, timeout=SOON_MS)


async def test_client_with_a_key_sees_the_page_and_one_without_is_asked_for_it(
    open_page: Open, start: Start, tmp_path: Path
) -> None:
    keys = KeyRing(tmp_path)
    keys.add("chat")
    running = await start(api_keys_file=keys.path)
    page = await open_page(f"http://127.0.0.1:{running.port}/ui")
    field = page.get_by_label("API key")
    await expect(field).to_be_focused(timeout=SOON_MS)
    await assert_accessible(page)
    await field.fill("not a key")
    await field.press("Enter")
    await expect(page.locator("#key-error")).to_contain_text("not known here")
    await field.fill(keys.keys["chat"])
    await field.press("Enter")
    await expect(page.locator(".badge")).to_have_text("ready", timeout=SOON_MS)
    assert keys.keys["chat"] not in page.url
    await page.reload()
    await expect(page.locator(".badge")).to_have_text("ready", timeout=SOON_MS)


async def test_batches_are_shown_while_there_are_some(
    open_page: Open, start: Start, held: Held, tmp_path: Path
) -> None:
    running = await start(batches=str(tmp_path / "batches"))
    page = await open_page(f"http://127.0.0.1:{running.port}/ui")
    panel = page.locator("#batches")
    await expect(page.locator("#requests-title")).to_be_visible(timeout=SOON_MS)
    await expect(panel).to_be_hidden()
    batches = Batches(running.port)
    batch = await batches.create(some(20))
    await expect(panel.locator("tbody tr")).to_have_count(1, timeout=SOON_MS)
    await expect(panel.locator("tbody td").nth(3)).to_have_text("0 of 20", timeout=SOON_MS)
    await eventually(lambda: len(held.waiting) == 4)
    held.release()
    await expect(panel.locator("tbody td").nth(3)).to_have_text("1 of 20", timeout=SOON_MS)
    await assert_accessible(page)
    await batches.client.batches.cancel(batch.id)
    await expect(panel).to_be_hidden(timeout=SOON_MS)
    await batches.client.close()
