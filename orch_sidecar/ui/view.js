// Draws the live document.

import { drawCurve, drawStrip } from "./charts.js";
import { attribute, element, fillRow, keyed, newRow, show, text } from "./dom.js";

const SHOWN = 30; // of the last requests
const MOST_CELLS = 512; // of a pool with more slots, a cell is several
const MOST_ADMITTED = 100; // of a pool in the document
const TYPES = {
  single_stream: ["single stream", "One request at a time: each has the whole engine."],
  batched_online: ["batched online", "Many requests share each step, within limits of latency."],
  offline: ["offline", "As many requests as possible share each step, however long each takes."],
};
const CLASSES = [
  ["interactive", "interactive"],
  ["bulk", "bulk"],
  ["idle", "idle"],
  ["foreign", "foreign"],
  ["closing", "closing"],
  ["free", "free"],
];

export function ms(value) {
  if (value == null) return "–";
  if (value < 10) return `${value.toFixed(1)}\u00a0ms`;
  if (value < 1000) return `${Math.round(value)}\u00a0ms`;
  return duration(value);
}

function duration(value) {
  const s = Math.max(0, value) / 1000;
  if (s < 10) return `${s.toFixed(1)}\u00a0s`;
  if (s < 120) return `${Math.round(s)}\u00a0s`;
  if (s < 7200) return `${Math.round(s / 60)}\u00a0min`;
  return s < 172800 ? `${Math.round(s / 3600)}\u00a0h` : `${Math.round(s / 86400)}\u00a0days`;
}

const sentence = (value) => value && `${value[0].toUpperCase()}${value.slice(1)}${/[.!?]$/.test(value) ? "" : "."}`;
const clock = (at) => new Date(at).toLocaleTimeString("en-GB");
const count = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en"));
const percent = (value) => (value == null ? "–" : `${Math.round(100 * value)} %`);

export function setConnection(live, message) {
  const node = element("live");
  attribute(node, "data-live", live ? "yes" : "no");
  text(node, message);
  document.body.classList.toggle("stale", !live);
}

export function render(live, actions, now) {
  show(element("content"), true);
  show(element("key-form"), false);
  document.body.classList.toggle("operator", live.operator);
  document.body.classList.toggle("several", live.pools.length > 1);
  document.body.classList.toggle("keyed", live.sidecar.keys);
  const types = [...new Set(live.pools.map((pool) => TYPES[pool.measurement_type][0]))];
  text(element("tagline"), types.join(" and "));
  const waiting = live.pools.reduce((sum, pool) => sum + queued(pool), 0);
  document.title = `${waiting ? `(${waiting}) ` : ""}orch: ${live.sidecar.state}`;
  keyed(element("pools"), live.pools, (pool) => pool.name, newPool, (node, pool) =>
    fillPool(node, pool, live, actions, now));
  fillQueue(live, actions, now, waiting);
  fillRunning(live, actions, now);
  fillBatches(live, now);
  fillRequests(live);
  text(element("about"), `orch ${live.sidecar.version}, started ${new Date(live.sidecar.started_at).toLocaleString("en-GB")}`
    + (live.operator ? "" : "; the operators' page, with buttons, is at the admin listener"));
}

function fillBatches(live, now) {
  const batches = live.batches ?? [];
  show(element("batches"), batches.length > 0);
  text(element("batches-count"), count(batches.length));
  keyed(element("batches-rows"), batches, (row) => row.batch, newRow, (node, row) =>
    fillRow(node, [
      [row.batch.slice(-8), "id"], [row.key ?? "–", "of-key"], [row.status.replace("_", " ")],
      [`${count(row.completed + row.failed)} of ${count(row.total)}`, "n"],
      [row.failed ? count(row.failed) : "", "n"],
      [row.rows_per_s == null ? "–" : row.rows_per_s.toFixed(1), "n"],
      [row.ends_at == null ? "–" : duration(row.ends_at - now), "n"],
    ]));
}

const queued = (pool) => Object.values(pool.queued).reduce((sum, each) => sum + each, 0);

function newPool() {
  const node = element("pool").content.firstElementChild.cloneNode(true);
  node.parts = new Proxy({}, {
    get: (found, name) => (found[name] ??= node.querySelector(`[data-${name}]`)),
  });
  return node;
}

function fillPool(node, pool, live, actions, now) {
  const part = node.parts;
  const [type, sentence] = TYPES[pool.measurement_type];
  text(part.name, pool.name);
  attribute(node, "aria-label", `Pool ${pool.name}`);
  const profile = pool.profile === pool.name ? [] : [`profile ${pool.profile}`];
  text(part.sub, [...profile, pool.models.join(", "), pool.engine, pool.gpu].filter(Boolean).join(" · "));
  text(part.type, type);
  text(part["type-text"], sentence);
  text(part.state, pool.state);
  attribute(part.state, "data-state", pool.state);
  fillOutage(part.outage, pool, now);
  fillSlots(part, pool);
  drawStrip(part.strip, pool);
  const last = pool.batches;
  text(part.batch, last.length
    ? `${last.at(-1)} now, ${(last.reduce((a, b) => a + b, 0) / last.length).toFixed(1)} on average`
    : "none yet");
  // Of an engine that never batches there is nothing to draw: one figure is enough.
  const batches = pool.slots.total > 1 || pool.curve.points.some(([batch]) => batch > 1);
  show(part["curve-section"], batches);
  if (batches) drawCurve(part.curve, pool);
  const fit = pool.curve.fit;
  const curve = fit?.good ? `${fit.t0_ms.toFixed(1)} + ${fit.c_ms.toFixed(2)} · b^${fit.alpha.toFixed(2)} ms` : fit ? "not yet sure" : "not yet measured";
  text(part.fit, pool.state === "ready" && pool.advice ? `${curve}. ${pool.advice}` : curve);
  fillSpeed(part, pool);
  fillFigures(part.figures, pool);
  const button = part.drain;
  const drains = pool.drain?.ordered_by === "operator";
  text(button, drains ? "Resume" : "Drain");
  attribute(button, "aria-label", `${drains ? "Resume" : "Drain"} the pool ${pool.name}`);
  show(button, pool.state !== "absent" && pool.drain?.ordered_by !== "shutdown");
  button.onclick = () => (drains ? actions.resume(pool.name) : actions.drain(pool.name));
}

function fillOutage(node, pool, now) {
  const away = pool.state !== "ready";
  show(node, away);
  if (!away) return;
  if (!node.firstChild) node.append(...["strong", "p", "p"].map((each) => document.createElement(each)));
  const [title, message, advice] = node.children;
  const since = pool.drain ? pool.drain.since_at : pool.since_at;
  text(title, sentence(since ? `${pool.state} since ${clock(since)}, for ${duration(now - since)}` : pool.state));
  text(message, sentence(pool.message));
  text(advice, pool.advice);
}

function fillSlots(part, pool) {
  const slots = pool.slots;
  const used = slots.total - slots.free;
  const each = Math.max(1, Math.ceil(slots.total / MOST_CELLS));
  const scale = each > 1 ? `; a cell is ${each} slots` : "";
  text(part.used, slots.total ? `${count(used)} of ${count(slots.total)} in use${scale}` : "none known yet");
  const kinds = [];
  for (const [name] of CLASSES) for (let n = 0; n < slots[name] && kinds.length < MOST_CELLS; n += each) kinds.push(name);
  const cells = part.cells;
  while (cells.children.length > kinds.length) cells.lastElementChild.remove();
  kinds.forEach((name, at) => {
    const cell = cells.children[at] ?? cells.appendChild(document.createElement("i"));
    attribute(cell, "data-slot", name);
  });
  attribute(cells, "data-many", slots.total > 64 ? "yes" : "no");
  const shown = CLASSES.filter(([name]) => slots[name] || name === "free");
  attribute(cells, "aria-label", shown.map(([name, word]) => `${slots[name]} ${word}`).join(", "));
  keyed(part.legend, shown, ([name]) => name, ([name]) => {
    const item = document.createElement("li");
    attribute(item, "data-slot", name);
    return item;
  }, (item, [name, word]) => text(item, `${slots[name]} ${word}`));
  const first = pool.waits && `${queued(pool)} in the queue; the first waits for ${pool.waits.text}.`;
  text(part.waits, first ?? "Nothing waits.");
  attribute(part.waits, "data-waits", pool.waits ? "yes" : "no");
}

function fillSpeed(part, pool) {
  keyed(part.speed, Object.entries(pool.latency), ([name]) => name, newRow, (row, [name, of]) => {
    const pair = (values, slo) => [
      [ms(values?.[0]), "n"],
      [ms(values?.[1]) + (slo == null ? "" : ` of\u00a0${ms(slo)}`), `n ${values && slo ? (values[1] > slo ? "late" : "kept") : ""}`.trim()],
    ];
    fillRow(row, [
      [name], [count(of.answers), "n"], [count(of.tokens), "n"],
      ...pair(of.ttft_ms, of.ttft_slo_ms), ...pair(of.tpot_ms, of.tpot_slo_ms),
    ]);
  });
  show(part["keys-section"], pool.keys.length > 0);
  keyed(part.keys, pool.keys, (each) => `${each.class} ${each.key}`, newRow, (row, each) =>
    fillRow(row, [[each.key], [each.class], [count(each.queued), "n"], [count(each.running), "n"], [percent(each.share), "n"]]));
}

function fillFigures(list, pool) {
  const { points } = pool.curve;
  const alone = pool.slots.total === 1 && points.length === 1;
  const figures = [
    ...(alone ? [["Time of a step", ms(points[0][1]), "one token each"]] : []),
    ["Tokens/s", count(pool.rates.tokens_per_s), "generated"],
    ["Prompt tokens/s", count(pool.rates.prompt_tokens_per_s), "read"],
    ["Busy", percent(pool.rates.busy), "of the last second"],
    ["KV cache", percent(pool.kv.usage), pool.kv.tokens ? `of ${count(pool.kv.tokens)} tokens` : ""],
    ["Preemptions", count(pool.kv.preemptions), "since its start", pool.kv.preemptions ? "warn" : ""],
    ["Violations", count(pool.violations), pool.violations ? "more sequences than slots" : "as it must be", pool.violations ? "bad" : ""],
  ];
  keyed(list, figures, ([name]) => name, () => {
    const item = document.createElement("div");
    item.append(...["dt", "dd", "dd"].map((each) => document.createElement(each)));
    return item;
  }, (item, [name, value, note, mood]) => {
    [name, value, note].forEach((each, at) => text(item.children[at], each));
    attribute(item, "data-mood", mood ?? "");
  });
}

function cancelButton(row, actions) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Cancel";
  button.setAttribute("aria-label", `Cancel request ${row.id.slice(0, 8)}`);
  button.onclick = () => actions.cancel(row);
  return button;
}

// Rows of requests in flight; the button of a row is made once.
function fillInFlight(name, rows, cells, live, actions) {
  show(element(`${name}-scroll`), rows.length > 0);
  show(element(`${name}-empty`), rows.length === 0);
  keyed(element(`${name}-rows`), rows, (row) => `${row.pool} ${row.id}`, (row) => {
    const node = newRow();
    node.cancel = live.operator ? cancelButton(row, actions) : "";
    return node;
  }, (node, row) => fillRow(node, [...cells(row, node), [row.id.slice(0, 8), "id"], [node.cancel, "operators"]]));
}

function fillQueue(live, actions, now, waiting) {
  const rows = live.pools.flatMap((pool) => pool.queue.map((row) => ({ ...row, pool: pool.name })));
  text(element("queue-count"), waiting ? String(waiting) : "");
  fillInFlight("queue", rows, (row) => [
    [String(row.position), "n"], [row.class], [row.key ?? "–", "of-key"], [row.pool, "of-pool"], [String(row.cost), "n"],
    [duration(now - row.queued_at), "n"],
    [row.starts_at == null ? "unknown" : duration(row.starts_at - now), "n"],
  ], live, actions);
  text(element("queue-more"), waiting > rows.length ? `and ${waiting - rows.length} more` : "");
}

function fillRunning(live, actions, now) {
  const rows = live.pools.flatMap((pool) => pool.admitted.map((row) => ({ ...row, pool: pool.name })));
  const more = live.pools.some((pool) => pool.admitted.length >= MOST_ADMITTED);
  text(element("running-count"), rows.length ? `${rows.length}${more ? " or more" : ""}` : "");
  fillInFlight("running", rows, (row) => [
    [row.class], [row.key ?? "–", "of-key"], [row.pool, "of-pool"], [String(row.cost), "n"], [duration(now - row.admitted_at), "n"],
    [{ prompt: "reads its prompt", generation: "generates" }[row.phase] ?? "runs"],
  ], live, actions);
}

function fillRequests(live) {
  const rows = [...live.requests.values()].slice(-SHOWN).reverse();
  show(element("requests-scroll"), rows.length > 0);
  show(element("requests-empty"), rows.length === 0);
  // Their numbers begin again with each start of the sidecar.
  keyed(element("requests-rows"), rows, (row) => `${live.sidecar.run} ${row.number}`, newRow, (node, row) => {
    const good = row.outcome === "ok";
    node.trace ??= traceLink(row, live.trace_url);
    fillRow(node, [
      [clock(row.ended_at)], [good ? "ok" : row.text, good ? "" : row.outcome === "cancelled" ? "dim" : "bad"],
      [row.pool ?? "–", "of-pool"], [row.class ?? "–"], [row.key ?? "–", "of-key"], [ms(row.wait_ms), "n"], [ms(row.first_byte_ms), "n"], [ms(row.total_ms), "n"],
      [row.tokens == null ? "–" : `${row.estimated ? "≈ " : ""}${count(row.tokens)}`, "n"],
      [row.batch == null ? "–" : row.batch.toFixed(1), "n"], [node.trace, "id of-trace"],
    ]);
  });
  document.body.classList.toggle("traced", rows.some((row) => row.trace_id));
}

function traceLink(row, url) {
  if (!row.trace_id) return "–";
  const shown = row.trace_id.slice(0, 8);
  if (!url) return shown;
  const link = document.createElement("a");
  link.href = url.replace("{trace_id}", row.trace_id);
  link.rel = "noreferrer";
  link.textContent = shown;
  link.setAttribute("aria-label", `Trace ${shown}`);
  return link;
}
