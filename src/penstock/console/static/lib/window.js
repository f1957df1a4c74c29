/** A table over the pages of a list on the broker. Only the rows on the screen exist, however long the list is. */

import { h, show } from "./dom.js";
import { classOf, frame, tableRow } from "./parts.js";
import { onLeave, scoped } from "./reactive.js";
import { meaningOf } from "./words.js";

const ROW_PIXELS = 40;
const PAGE = 50;
const SPARE_ROWS = 10;

/**
 * @param {{caption: string, columns: import("./parts.js").Column[], sort: {by: string, descending: boolean},
 *   onsort: (by: string) => void, load: (offset: number, limit: number) => Promise<{total: number, rows: any[]}>,
 *   onshown: (rows: any[]) => void, empty: () => any}} options
 */
export function windowed({ caption, columns, sort, onsort, load, onshown, empty }) {
  const above = h("tr", { class: "spacer" });
  const below = h("tr", { class: "spacer" });
  const body = h("tbody", {}, above, below);
  const head = h(
    "tr",
    {},
    columns.map((column) => headCell(column, sort, onsort)),
  );
  const place = h("div", {}, frame(caption, head, body));
  /** @type {Map<number, any[]>} */
  const pages = new Map();
  let total = -1;
  let shownRange = "";
  let endRows = () => {};

  const fetchPage = async (/** @type {number} */ page) => {
    if (pages.has(page)) return undefined;
    pages.set(page, []);
    let found;
    try {
      found = await load(page * PAGE, PAGE);
    } catch (error) {
      return show(place, h("p", { class: "problem", role: "alert" }, /** @type {Error} */ (error).message));
    }
    pages.set(page, found.rows);
    total = found.total;
    shownRange = "";
    return draw();
  };

  const draw = () => {
    if (total === 0) return show(place, h("div", { class: "empty" }, empty()));
    const top = body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / ROW_PIXELS) - SPARE_ROWS);
    const last = Math.min(Math.max(total, 1), first + Math.ceil(innerHeight / ROW_PIXELS) + 2 * SPARE_ROWS);
    for (let page = Math.floor(first / PAGE); page <= Math.floor((last - 1) / PAGE); page += 1) fetchPage(page);
    const range = `${first} ${last}`;
    if (range === shownRange) return undefined;
    shownRange = range;
    const rows = [];
    for (let at = first; at < last; at += 1) rows.push(pages.get(Math.floor(at / PAGE))?.[at % PAGE]);
    above.style.height = `${first * ROW_PIXELS}px`;
    below.style.height = `${Math.max(0, total - last) * ROW_PIXELS}px`;
    endRows();
    const drawn = scoped(() => rows.map((row) => (row ? tableRow(columns, row) : waitingRow(columns))));
    endRows = drawn.dispose;
    body.replaceChildren(above, ...drawn.value, below);
    onshown(rows.filter(Boolean));
    return undefined;
  };

  const onscroll = () => requestAnimationFrame(draw);
  addEventListener("scroll", onscroll, { passive: true });
  addEventListener("resize", onscroll);
  onLeave(() => {
    removeEventListener("scroll", onscroll);
    removeEventListener("resize", onscroll);
    endRows();
  });
  fetchPage(0);
  return place;
}

/**
 * @param {import("./parts.js").Column} column
 * @param {{by: string, descending: boolean}} sort
 * @param {(by: string) => void} onsort
 */
export function headCell(column, sort, onsort) {
  const by = column.sort;
  if (!by) return h("th", classOf(column), column.label);
  const order = sort.by === by ? (sort.descending ? "descending" : "ascending") : "none";
  const mark = { none: "", ascending: " ↑", descending: " ↓" }[order];
  return h(
    "th",
    { ...classOf(column), title: meaningOf(column.label), "aria-sort": order },
    h("button", { type: "button", class: "sort", onclick: () => onsort(by) }, column.label + mark),
  );
}

/** @param {import("./parts.js").Column[]} columns */
const waitingRow = (columns) =>
  h(
    "tr",
    { class: "skeleton" },
    columns.map((column) => h("td", classOf(column), " ")),
  );
