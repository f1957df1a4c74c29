/** Lists of messages, page after page, with what can be done to those that are chosen, or to all that match. */

import { api, facts, url } from "./api.js";
import { preview } from "./body.js";
import { filterOf, remove } from "./deleting.js";
import { dictionary } from "./dictionary.js";
import { h, show } from "./dom.js";
import { count, plural } from "./format.js";
import { action, badge, button, messageLink, moment, queueLink, table } from "./parts.js";
import { redrive } from "./redrive.js";

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
 * @param {{path?: string, empty?: any, withQueue?: boolean, own?: import("./parts.js").Column[], dead?: boolean,
 * total?: () => number|null}} [options]
 * `own`: the last columns. `dead`: they are dead letters
 */
export function messageList(
  query,
  {
    path = "/v1/search",
    empty = "No message matches.",
    withQueue = true,
    own: added = DELIVERY,
    dead = false,
    total = () => null,
  } = {},
) {
  const place = h("div", {});
  /** @type {any[]} */
  let rows = [];
  /** @type {Map<string, any>} */
  const chosen = new Map();
  let isAll = false; // All that match, loaded or not.
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
        const found = await api(url(path, { ...query, limit: wanted - rows.length, cursor: next }), {
          signal: own.signal,
        });
        rows = [...rows, ...found.messages];
        next = found.next;
        if (next) draw();
      } while (next && rows.length < wanted && place.isConnected);
    } catch (error) {
      if (!own.signal.aborted)
        return show(place, h("p", { class: "problem", role: "alert" }, /** @type {Error} */ (error).message));
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
    choose([], false);
    return load();
  };
  const choose = (/** @type {any[]} */ wanted, all = false) => {
    chosen.clear();
    for (const row of wanted) chosen.set(row.id, row);
    isAll = all;
  };
  const draw = () => {
    const isBlank = running !== null && !rows.length;
    place.className = isBlank ? "skeleton" : "loaded";
    place.setAttribute("aria-busy", String(isBlank));
    const nothing = next ? "No message matches so far. Not all messages were looked through yet." : empty;
    const boxes = {
      chosen,
      rows,
      changed: () => ((isAll = false), redraw()),
      all: (/** @type {boolean} */ yes) => (choose(yes ? rows : []), draw()),
    };
    show(
      place,
      isBlank ? null : table("Messages", columns(withQueue, boxes, added), rows, { empty: nothing }),
      foot,
      bar,
    );
    redraw();
  };
  const foot = h("div", { class: "heading foot" });
  const bar = h("div", { class: "chosen actions", role: "status" });
  const progress = h("div", { "aria-live": "polite" });
  place.after(progress);
  const redraw = () => {
    const own = running;
    show(
      foot,
      h("span", { role: "status" }, words()),
      progress,
      own ? button("Stop", () => own.abort()) : next && button(rows.length ? "Load more" : "Go on", load),
    );
    bar.hidden = !chosen.size;
    const choice = { query, rows: [...chosen.values()], isAll, total: isAll ? total() : chosen.size };
    show(
      bar,
      chosen.size
        ? [
            h(
              "b",
              {},
              isAll
                ? `All that match${choice.total ? `: ${plural(choice.total, "message")}` : ""}`
                : `${plural(chosen.size, "message")} chosen`,
            ),
            query.queue &&
              next &&
              !isAll &&
              button(
                `Choose all that match${total() ? ` (${count(total())})` : ""}`,
                () => (choose(rows, true), draw()),
              ),
            action(dead ? "Redrive …" : "Move …", () => redrive(ordersOf(choice), progress, again)),
            action(
              `Delete${isAll ? "" : ` ${count(chosen.size)}`} …`,
              () => remove(choice, progress).then((isDone) => isDone && again()),
              { class: "danger" },
            ),
            button("Clear", () => (choose([]), draw()), { class: "plain" }),
          ]
        : null,
    );
  };
  const words = () =>
    running
      ? `Searching …${rows.length ? ` ${plural(rows.length, "message")} so far` : ""}`
      : rows.length
        ? `${plural(rows.length, "message")}${next ? more(total()) : ""}`
        : "";
  load();
  return place;
}

/**
 * @param {boolean} withQueue
 * @param {{chosen: Map<string, any>, rows: any[], changed: () => void, all: (yes: boolean) => void}} boxes
 * @param {import("./parts.js").Column[]} own
 * @returns {import("./parts.js").Column[]}
 */
function columns(withQueue, { chosen, rows, changed, all }, own) {
  const toggle = (/** @type {any} */ event, /** @type {any} */ row) => {
    if (event.target.checked) chosen.set(row.id, row);
    else chosen.delete(row.id);
    changed();
  };
  const tick = (
    /** @type {string} */ label,
    /** @type {boolean} */ checked,
    /** @type {(event: any) => void} */ onchange,
  ) => h("input", { type: "checkbox", checked, "aria-label": label, onchange });
  /** @type {import("./parts.js").Column[]} */
  const found = [
    { label: "Message", cell: (row) => messageLink(row.id) },
    { label: "State", minor: true, cell: (row) => statusBadge(row.status) },
    {
      label: "Body",
      grow: true,
      cell: (row) => h("span", { class: "preview mono", title: preview(row) }, preview(row)),
    },
    { label: "Created", spare: true, cell: (row) => moment(row.created) },
    ...own,
  ];
  if (withQueue) found.splice(1, 0, { label: "Queue", minor: true, cell: (row) => queueLink(row.queue) });
  if (!facts.readOnly) {
    found.unshift({
      label: "",
      tick: true,
      head: () =>
        tick("Choose all that are shown", rows.length > 0 && chosen.size === rows.length, (event) =>
          all(event.target.checked),
        ),
      cell: (row) => tick(`Select ${row.id}`, chosen.has(row.id), (event) => toggle(event, row)),
    });
  }
  return found;
}

/**
 * One redrive for each queue.
 * @param {import("./deleting.js").Choice} choice
 * @returns {import("./redrive.js").Order[]}
 */
function ordersOf({ query, rows, isAll }) {
  if (isAll) return [{ from: query.queue, filter: filterOf(query) }];
  return Object.entries(Object.groupBy(rows, (row) => row.queue)).map(([from, some]) => ({
    from,
    filter: { id: (some || []).map((row) => row.id).join(",") },
  }));
}
