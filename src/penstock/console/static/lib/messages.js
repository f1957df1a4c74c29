/** Lists of messages, page after page, with what can be done to those that are selected. */

import { api, facts, url } from "./api.js";
import { preview } from "./body.js";
import { h, show } from "./dom.js";
import { count, plural, time } from "./format.js";
import { action, ask, attempt, badge, button, messageLink, note, queueLink, table } from "./parts.js";

const PAGE = 50;
const GO_ON_MS = 6000; // A search that has found nothing goes on by itself for so long.
const TONES = { leased: "accent", delayed: "soon", damaged: "bad" };

/** @param {string} status */
export const statusBadge = (status) => badge(status, /** @type {Record<string, string>} */ (TONES)[status] || "");

/** @type {import("./parts.js").Column[]} */
const DELIVERY = [
  { label: "Receives", number: true, minor: true, cell: (row) => count(row.receives) },
  { label: "Consumer", minor: true, cell: (row) => row.consumer || "–" },
];

/**
 * The messages that a search finds. More are loaded at the end of the list.
 * @param {Record<string, any>} query of `/v1/search`
 * @param {{path?: string, empty?: any, withQueue?: boolean, own?: import("./parts.js").Column[]}} [options] `own`: the last columns
 */
export function messageList(query, { path = "/v1/search", empty = "No message matches.", withQueue = true, own: added = DELIVERY } = {}) {
  const place = h("div", { class: "skeleton", "aria-busy": "true" });
  /** @type {any[]} */
  let rows = [];
  /** @type {Set<string>} */
  const chosen = new Set();
  let next = "";

  /** One page, and more if it is empty: the broker looks for two seconds at a time. */
  const load = async () => {
    const [before, until] = [rows.length, Date.now() + GO_ON_MS];
    do {
      const found = await api(url(path, { ...query, limit: PAGE, cursor: next })).catch((error) => ({ error }));
      place.removeAttribute("aria-busy");
      place.className = "loaded";
      if (found.error) return show(place, h("p", { class: "problem", role: "alert" }, found.error.message));
      rows = [...rows, ...found.messages];
      next = found.next;
      draw();
    } while (next && rows.length === before && Date.now() < until && place.isConnected);
    return undefined;
  };
  const again = () => {
    rows = [];
    next = "";
    chosen.clear();
    return load();
  };
  const draw = () => show(place, table("Messages", columns(withQueue, chosen, redraw, added), rows, { empty: next ? "No message matches so far. The broker has not looked through all messages yet." : empty }), foot());
  const bar = h("div", { class: "actions" });
  const redraw = () => show(bar, chosen.size ? [plural(chosen.size, "message"), action(`Delete ${chosen.size}`, () => remove([...chosen]).then(again), { class: "danger" })] : rows.length ? `${plural(rows.length, "message")}${next ? " so far; there may be more" : ""}` : "");
  const goOn = (/** @type {any} */ event) => {
    event.target.disabled = true;
    event.target.textContent = "Looking …";
    return load();
  };
  const foot = () => {
    redraw();
    return h("div", { class: "heading foot" }, bar, next && button(rows.length ? "Load more" : "Go on", goOn));
  };
  load();
  return place;
}

/**
 * @param {boolean} withQueue
 * @param {Set<string>} chosen
 * @param {() => void} changed
 * @param {import("./parts.js").Column[]} own
 * @returns {import("./parts.js").Column[]}
 */
function columns(withQueue, chosen, changed, own) {
  const toggle = (/** @type {any} */ event, /** @type {string} */ id) => {
    if (event.target.checked) chosen.add(id);
    else chosen.delete(id);
    changed();
  };
  /** @type {import("./parts.js").Column[]} */
  const all = [
    { label: "Message", cell: (row) => messageLink(row.id) },
    { label: "State", cell: (row) => statusBadge(row.status) },
    { label: "Body", grow: true, cell: (row) => h("span", { class: "preview mono", title: preview(row) }, preview(row)) },
    { label: "Created", minor: true, cell: (row) => time(row.created) },
    ...own,
  ];
  if (withQueue) all.splice(1, 0, { label: "Queue", minor: true, cell: (row) => queueLink(row.queue) });
  if (!facts.readOnly) all.unshift({ label: "", cell: (row) => h("input", { type: "checkbox", "aria-label": `Select ${row.id}`, onchange: (/** @type {any} */ event) => toggle(event, row.id) }) });
  return all;
}

/** Delete messages one by one, after a question. @param {string[]} ids */
export async function remove(ids) {
  if (!(await ask({ title: `Delete ${plural(ids.length, "message")}?`, text: "This cannot be undone. A message that a consumer holds is not deleted.", act: "Delete", danger: true }))) return;
  let done = 0;
  for (const id of ids) if (await attempt(() => api(`/v1/messages/${id}`, { method: "DELETE" }))) done += 1;
  note(`${plural(done, "message")} deleted`);
}
