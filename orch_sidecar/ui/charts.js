// Draws the charts, as SVG in pixels: the batches of the last steps, and the step time by batch.

const SVG = "http://www.w3.org/2000/svg";
const STEPS = 120;

function make(name, attributes, content) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (content != null) node.textContent = content;
  return node;
}

// Draws again only if what is drawn, or its size, has changed. Returns the size, or null.
function begin(svg, drawn) {
  const { width, height } = svg.getBoundingClientRect();
  const key = JSON.stringify([drawn, width, height]);
  if (!width || svg.drawn === key) return null;
  svg.drawn = key;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return { width, height };
}

export function drawStrip(svg, pool) {
  const most = Math.max(pool.slots.total, ...pool.batches, 1);
  const size = begin(svg, [pool.batches, pool.decode_steps, most]);
  if (!size) return;
  const { width, height } = size;
  const left = 26, step = (width - left) / STEPS, base = height - 0.5;
  const heightOf = (batch) => (batch / most) * (height - 8);
  // The newest at the right end; where fewer are known, the left is empty.
  const first = STEPS - pool.batches.length;
  const line = pool.batches.map((batch) => `V${(base - heightOf(batch)).toFixed(1)}h${step.toFixed(3)}`).join("");
  const begins = `M${(left + first * step).toFixed(1)} ${base}`;
  const top = base - heightOf(most);
  svg.replaceChildren(
    make("path", { class: "rule", d: `M${left} ${top}H${width}M${left} ${base}H${width}` }),
    make("text", { class: "tick end", x: left - 6, y: top + 4 }, String(most)),
    make("text", { class: "tick end", x: left - 6, y: base }, "0"),
    make("path", { class: "area", d: `${begins}${line}V${base}z` }),
    make("path", { class: "edge", d: begins + line }),
  );
  svg.setAttribute("aria-label", pool.batches.length
    ? `Batches of the last ${pool.batches.length} decode steps: ${Math.min(...pool.batches)} to ${Math.max(...pool.batches)} of ${most}`
    : "No decode step has been reported");
}

// A round number of about that size.
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value);
}

export function drawCurve(svg, pool) {
  const { points } = pool.curve;
  const fit = pool.curve.fit?.good ? pool.curve.fit : null; // one that is not sure tells nothing
  const slo = pool.latency.interactive?.tpot_slo_ms ?? null;
  const size = begin(svg, [points, fit, slo, pool.slots.total]);
  if (!size) return;
  const { width, height } = size;
  svg.setAttribute("aria-label", describe(points, fit, slo));
  if (!points.length) {
    svg.replaceChildren(make("text", { class: "tick middle", x: width / 2, y: height / 2 }, "No decode step yet"));
    return;
  }
  const ms = (batch) => fit.t0_ms + fit.c_ms * batch ** fit.alpha;
  const most = Math.max(pool.slots.total, ...points.map(([batch]) => batch), 2);
  const highest = Math.max(...points.map(([, each]) => each), fit ? ms(Math.min(Math.max(fit.largest, 1), most)) : 0);
  const sloFits = slo != null && slo < 3 * highest;
  const tick = round(Math.max(highest * 1.15, sloFits ? slo * 1.1 : 0) / 4);
  const top = tick * 4;
  const left = 54, right = width - 10, low = height - 34, high = 16;
  const x = (batch) => left + ((batch - 1) / (most - 1)) * (right - left);
  const y = (each) => low - (each / top) * (low - high);
  const nodes = [];
  for (let n = 0; n <= 4; n++) {
    nodes.push(make("path", { class: "rule", d: `M${left} ${y(n * tick)}H${right}` }));
    nodes.push(make("text", { class: "tick end", x: left - 7, y: y(n * tick) + 4 }, label(n * tick) + (n === 4 ? " ms" : "")));
  }
  for (const batch of [...new Set([1, Math.round((1 + most) / 2), most])])
    nodes.push(make("text", { class: "tick middle", x: x(batch), y: low + 17 }, String(batch)));
  nodes.push(make("text", { class: "tick middle", x: (left + right) / 2, y: height - 3 }, "sequences in the batch"));
  if (sloFits) {
    nodes.push(make("path", { class: "slo", d: `M${left} ${y(slo)}H${right}` }));
    nodes.push(make("text", { class: "tick end", x: right, y: y(slo) - 5 }, `SLO per token, ${slo} ms`));
  }
  if (slo != null && !sloFits) nodes.push(make("text", { class: "tick end", x: right, y: high - 4 }, `SLO per token: ${slo} ms, above this chart`));
  if (fit) {
    const known = [], beyond = [];
    for (let n = 0; n <= 60; n++) {
      const batch = 1 + (n / 60) * (most - 1);
      (batch <= fit.largest ? known : beyond).push(`${x(batch).toFixed(1)} ${y(Math.min(ms(batch), top)).toFixed(1)}`);
    }
    if (known.length > 1) nodes.push(make("polyline", { class: "fit", points: known.join(" ") }));
    if (beyond.length) nodes.push(make("polyline", { class: "fit beyond", points: [...known.slice(-1), ...beyond].join(" ") }));
  }
  const weight = Math.max(...points.map(([, , steps]) => steps));
  for (const [batch, each, steps] of points)
    nodes.push(make("circle", { class: "point", cx: x(batch), cy: y(each), r: (2.5 + 2.5 * Math.sqrt(steps / weight)).toFixed(1) }));
  svg.replaceChildren(...nodes);
}

const label = (value) => (value >= 10 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(value < 1 ? 2 : 1));

function describe(points, fit, slo) {
  if (!points.length) return "No step time has been measured";
  const measured = points.map(([batch, ms]) => `${ms.toFixed(1)} ms at ${batch}`);
  const shown = measured.length > 6 ? [measured[0], measured.at(-1)] : measured;
  const parts = [`Mean time of a decode step by its batch: ${shown.join(", ")}`];
  if (fit) parts.push(`fit ${fit.t0_ms.toFixed(1)} + ${fit.c_ms.toFixed(2)} times the batch to the power of ${fit.alpha.toFixed(2)}`);
  if (slo != null) parts.push(`SLO per token ${slo} ms`);
  return parts.join("; ");
}
