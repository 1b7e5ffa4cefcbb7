// Writes to the page. Elements are kept and only what differs is written, so that focus, selection
// and the reader's place in a table stay where they are.

export const element = (id) => document.getElementById(id);

// Writes only what differs.
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}
export function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

// Makes the children of `parent` those of `items`, in their order; `fill` writes one.
export function keyed(parent, items, keyOf, make, fill) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const kept = new Set();
  const keys = items.map((item) => {
    let key = String(keyOf(item));
    while (kept.has(key)) key += "+"; // ids that are cut may be alike
    kept.add(key);
    return key;
  });
  for (const [key, child] of old) {
    if (kept.has(key)) continue;
    const focused = child.contains(document.activeElement);
    child.remove();
    // The keyboard's place is then the table, and not the top of the page.
    if (focused) (parent.closest(".scroll:not([hidden])") ?? element("main")).focus({ preventScroll: true });
  }
  let place = parent.firstElementChild;
  items.forEach((item, at) => {
    let child = old.get(keys[at]);
    if (!child) {
      child = make(item);
      child.dataset.key = keys[at];
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    fill(child, item);
  });
}

// A table's row of texts; `cells`: [text, class of the cell].
export function fillRow(row, cells) {
  cells.forEach(([value, name], at) => {
    const cell = row.children[at] ?? row.appendChild(document.createElement("td"));
    if (value instanceof Node) {
      if (cell.firstChild !== value) cell.replaceChildren(value);
    } else text(cell, value);
    if (cell.className !== (name ?? "")) cell.className = name ?? "";
  });
}
export const newRow = () => document.createElement("tr");
