/** Lists of messages, page after page, with what can be done to those that are selected. */

import { api, facts, url } from "./api.js";
import { preview } from "./body.js";
import { dictionary } from "./dictionary.js";
import { h, show } from "./dom.js";
import { count, plural } from "./format.js";
import { action, ask, attempt, badge, button, messageLink, moment, note, queueLink, table } from "./parts.js";

const PAGE = 50;
const TONES = dictionary({ leased: "accent", delayed: "soon", damaged: "bad" });

/** @param {string} status */
export const statusBadge = (status) => badge(status, TONES[status] || "");

/** @type {import("./parts.js").Column[]} */
const DELIVERY = [
  { label: "Receives", number: true, minor: true, cell: (row) => count(row.receives) },
  { label: "Consumer", minor: true, cell: (row) => row.consumer || "–" },
];

/** What comes after the number of rows when there are more. @param {number|null} total */
const more = (total) => (total ? ` of ${count(total)}` : " so far; there may be more");

/**
 * The messages that a search finds. More are loaded at the end of the list.
 * @param {Record<string, any>} query of `/v1/search`
 * @param {{path?: string, empty?: any, withQueue?: boolean, own?: import("./parts.js").Column[], total?: () => number|null}} [options] `own`: the last columns
 */
export function messageList(query, { path = "/v1/search", empty = "No message matches.", withQueue = true, own: added = DELIVERY, total = () => null } = {}) {
  const place = h("div", {});
  /** @type {any[]} */
  let rows = [];
  /** @type {Set<string>} */
  const chosen = new Set();
  let next = "";
  /** @type {AbortController|null} */
  let running = null;

  /** One page. The broker looks for two seconds at a time; this goes on until the page is full or somebody stops it. */
  const load = async () => {
    const own = (running = new AbortController());
    const wanted = rows.length + PAGE;
    draw();
    try {
      do {
        const found = await api(url(path, { ...query, limit: wanted - rows.length, cursor: next }), { signal: own.signal });
        rows = [...rows, ...found.messages];
        next = found.next;
        if (next) draw();
      } while (next && rows.length < wanted && place.isConnected);
    } catch (error) {
      if (!own.signal.aborted) return show(place, h("p", { class: "problem", role: "alert" }, /** @type {Error} */ (error).message));
    } finally {
      running = null;
      place.className = "loaded";
      place.removeAttribute("aria-busy");
    }
    return draw();
  };
  const again = () => {
    rows = [];
    next = "";
    chosen.clear();
    return load();
  };
  const draw = () => {
    const isBlank = running !== null && !rows.length;
    place.className = isBlank ? "skeleton" : "loaded";
    place.setAttribute("aria-busy", String(isBlank));
    const nothing = next ? "No message matches so far. Not all messages were looked through yet." : empty;
    show(place, isBlank ? null : table("Messages", columns(withQueue, chosen, redraw, added), rows, { empty: nothing }), foot());
  };
  const bar = h("div", { class: "actions", role: "status" });
  const redraw = () => show(bar, chosen.size ? [plural(chosen.size, "message"), action(`Delete ${chosen.size}`, () => remove([...chosen]).then(again), { class: "danger" })] : words());
  const words = () => (running ? `Searching …${rows.length ? ` ${plural(rows.length, "message")} so far` : ""}` : rows.length ? `${plural(rows.length, "message")}${next ? more(total()) : ""}` : "");
  const foot = () => {
    redraw();
    const own = running;
    return h("div", { class: "heading foot" }, bar, own ? button("Stop", () => own.abort()) : next && button(rows.length ? "Load more" : "Go on", load));
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
    { label: "Created", minor: true, cell: (row) => moment(row.created) },
    ...own,
  ];
  if (withQueue) all.splice(1, 0, { label: "Queue", minor: true, cell: (row) => queueLink(row.queue) });
  if (!facts.readOnly) all.unshift({ label: "", cell: (row) => h("input", { type: "checkbox", checked: chosen.has(row.id), "aria-label": `Select ${row.id}`, onchange: (/** @type {any} */ event) => toggle(event, row.id) }) });
  return all;
}

/** Delete messages one by one, after a question. @param {string[]} ids */
export async function remove(ids) {
  if (!(await ask({ title: `Delete ${plural(ids.length, "message")}?`, text: "This cannot be undone. A message that a consumer holds is not deleted.", act: "Delete", danger: true }))) return;
  let done = 0;
  for (const id of ids) if (await attempt(() => api(`/v1/messages/${id}`, { method: "DELETE" }))) done += 1;
  note(`${plural(done, "message")} deleted`);
}
