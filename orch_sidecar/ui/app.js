// Reads the live document (GET /v1/live) and gives it to the view; sends what an operator orders.
// The stream is read by fetch, not by EventSource, which cannot send an API key in a header.

import { render, setConnection } from "./view.js";

const LIVE = "v1/live"; // relative: a proxy may serve this page below a path
const SILENCE_MS = 6000; // the sidecar writes at least every 2 s
const RETRY_MS = [500, 1000, 2000, 5000];
const KEY = "orch-api-key";

const state = { document: null, receivedAt: 0 };
const element = (id) => document.getElementById(id);

// The sidecar's clock, now: its last event, and the time that has passed since.
const now = () => (state.document?.at ?? Date.now()) + performance.now() - state.receivedAt;

function apply(name, data) {
  const before = state.document;
  if (name === "snapshot") {
    // Another release has another page.
    if (before && before.sidecar.version !== data.sidecar.version) location.reload();
    const requests = new Map(data.requests.map((row) => [row.number, row]));
    state.document = { ...data, requests };
  } else if (before) {
    for (const row of data.requests ?? []) before.requests.set(row.number, row);
    const late = before.requests.size - 100;
    if (late > 0) [...before.requests.keys()].slice(0, late).forEach((each) => before.requests.delete(each));
    state.document = { ...before, ...data, requests: before.requests };
  }
  state.receivedAt = performance.now();
  draw();
}

let drawing = false;
function draw() {
  if (drawing || document.hidden || !state.document) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    render(state.document, actions, now());
  });
}
document.addEventListener("visibilitychange", draw);
addEventListener("resize", draw);
setInterval(draw, 1000); // ages and waits

// Calls `take` with name and data of each event of a response.
async function readEvents(response, alive, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "", data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) take(name, JSON.parse(data));
    }
  }
}

async function follow() {
  const controller = new AbortController();
  let timer = 0;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => controller.abort(), SILENCE_MS);
  };
  alive();
  try {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const response = await fetch(LIVE, { headers, cache: "no-store", signal: controller.signal });
    if (response.status === 401) {
      controller.abort();
      await askForKey(Boolean(key));
      return;
    }
    if (!response.ok) throw new Refused(await messageOf(response));
    failures = 0;
    showRefusal("");
    setConnection(true, "Live");
    await readEvents(response, alive, apply);
  } finally {
    clearTimeout(timer);
    controller.abort();
  }
}

class Refused extends Error {}

function showRefusal(message) {
  element("refused").textContent = message;
  element("refused").hidden = !message;
}

let failures = 0;
async function run() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      if (error instanceof SyntaxError) console.error("an event could not be read", error);
      if (error instanceof Refused) showRefusal(`The sidecar refuses to show its state: ${error.message}`);
    }
    setConnection(false, "Connection lost: trying again");
    await new Promise((go) => setTimeout(go, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]));
  }
}

function askForKey(wasWrong) {
  const form = element("key-form");
  sessionStorage.removeItem(KEY);
  setConnection(false, "Waiting for an API key");
  showRefusal("");
  element("key-error").textContent = wasWrong ? "This key is not known here: check it." : "";
  element("content").hidden = true;
  form.hidden = false;
  element("key").focus();
  return new Promise((done) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, element("key").value.trim());
      element("key").value = "";
      form.hidden = true;
      failures = 0;
      done();
    };
  });
}

async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the sidecar answered ${response.status}`;
  }
}

// What an operator orders. The sidecar takes it from this origin only, with this header and body.
async function order(method, path, done) {
  try {
    const response = await fetch(path, {
      method,
      headers: { "Content-Type": "application/json", "X-Orch-Operator": "true" },
      body: "{}",
    });
    toast(response.ok ? done : `Not done: ${await messageOf(response)}`);
  } catch {
    toast("Not done: the sidecar cannot be reached.");
  }
}

let toastTimer = 0;
function toast(text) {
  element("toast").textContent = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (element("toast").textContent = ""), 8000);
}

function confirmed(title, text, yes) {
  const dialog = element("confirm");
  element("confirm-title").textContent = title;
  element("confirm-text").textContent = text;
  element("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => {
    // The event of an earlier question can come after this one is open.
    dialog.onclose = () => dialog.open || done(dialog.returnValue === "yes");
  });
}

const pool = (name, what) => `v1/pools/${encodeURIComponent(name)}/${what}`;
const actions = {
  async cancel(row) {
    const title = `Cancel request ${row.id.slice(0, 8)}?`;
    if (await confirmed(title, "Its client gets an error, and nothing more of an answer.", "Cancel request"))
      await order("DELETE", `v1/requests/${row.id}`, `Request ${row.id.slice(0, 8)} is cancelled.`);
  },
  async drain(name) {
    const text = "It finishes what it has and takes nothing new, until it is resumed.";
    if (await confirmed(`Drain the pool ${name}?`, text, "Drain")) await order("POST", pool(name, "drain"), `${name} drains.`);
  },
  async resume(name) {
    await order("POST", pool(name, "resume"), `${name} takes requests again.`);
  },
};

run();
