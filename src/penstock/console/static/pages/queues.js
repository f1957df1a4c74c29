/** Queues: all of them, filtered and sorted by the broker, with live figures for those on the screen. */

import { curl } from "../lib/code.js";
import { h } from "../lib/dom.js";
import { age, change, count, rate } from "../lib/format.js";
import { sparkline } from "../lib/chart.js";
import { extend, figures, seriesOf, watchFigures } from "../lib/live.js";
import { action, badge, copyable, field, heading, queueLink } from "../lib/parts.js";
import { signal } from "../lib/reactive.js";
import { troubleBadge } from "../lib/trouble.js";
import { navigate } from "../lib/route.js";
import { windowed } from "../lib/window.js";
import { createQueue } from "./queue_settings.js";

const TYPING_MS = 200; // Nobody asks for what is still being typed.

/** @param {any} route */
export function page({ query }) {
  const live = watchFigures();
  /** @type {Map<string, any>} */
  const hours = new Map();
  live.listen((time) => {
    for (const [name, series] of hours)
      if (live.queues.has(name)) extend(series, time, /** @type {any} */ (live.queues.get(name)));
  });
  const sort = { by: query.sort || "name", descending: query.order === "descending" };
  const name = signal(query.name || "");
  const list = (/** @type {string} */ wanted) =>
    windowed({
      caption: "Queues",
      columns: columns(live, hours),
      sort,
      onsort: (by) =>
        navigate("/queues", {
          ...query,
          name: name.peek(),
          sort: by,
          order: isDescendingNext(sort, by) ? "descending" : "",
        }),
      load: async (offset, limit) => {
        const found = await figures({
          name: wanted,
          sort: sort.by,
          order: sort.descending && "descending",
          offset,
          limit,
          history: true,
        });
        live.attention.set(found.attention);
        for (const row of found.queues) {
          live.queues.set(row.name, row);
          hours.set(row.name, seriesOf(found, row.name));
        }
        return { total: found.total, rows: found.queues };
      },
      onshown: (rows) => live.watch(rows.map((row) => row.name)),
      empty: () => emptyState(wanted),
    });
  let timer = 0;
  const typed = (/** @type {any} */ event) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      navigate("/queues", { ...query, name: event.target.value }, { quiet: true });
      name.set(event.target.value);
    }, TYPING_MS);
  };
  const filter = field("Filter by name", { type: "search", id: "filter", value: query.name || "", oninput: typed });
  return [
    heading("Queues", action("Create a queue", createQueue, { class: "primary" })),
    h("div", { class: "filters" }, filter),
    h("div", {}, () => list(name())),
  ];
}

/**
 * Who sorts by a number wants the largest first, and by a name the first.
 * @param {{by: string, descending: boolean}} sort
 * @param {string} by
 */
const isDescendingNext = (sort, by) => (sort.by === by ? !sort.descending : by !== "name" && by !== "ready_since");

/** @param {any} live @param {Map<string, any>} hours @returns {import("../lib/parts.js").Column[]} */
function columns(live, hours) {
  const now = (/** @type {any} */ row) => (live.tick(), live.queues.get(row.name) || row);
  const figure = (/** @type {string} */ label, /** @type {string} */ name, /** @type {any} */ format, more = {}) => ({
    label,
    sort: name,
    number: true,
    ...more,
    cell: (/** @type {any} */ row) =>
      h("span", { class: () => (now(row)[name] ? "" : "zero") }, () => format(now(row)[name])),
  });
  const troubleOf = (/** @type {any} */ row) => {
    const found = live
      .attention()
      .find((/** @type {any} */ each) => each.queue === row.name && each.reason !== "dead_letters");
    return found && h("span", { title: found.text }, troubleBadge(found));
  };
  return [
    {
      label: "Queue",
      sort: "name",
      cell: (row) =>
        h(
          "span",
          { class: "name" },
          queueLink(row.name),
          row.channel && badge("channel"),
          row.dead_letters && badge("dead letters", row.ready ? "bad" : ""),
          () => troubleOf(row),
        ),
    },
    figure("Ready", "ready", count),
    figure("Last minute", "growth", change),
    figure("Leased", "leased", count, { minor: true }),
    figure("Delayed", "delayed", count, { minor: true }),
    { label: "Wait", sort: "ready_since", number: true, cell: (row) => h("span", {}, () => age(now(row).ready_since)) },
    figure("In/s", "in", rate, { minor: true }),
    figure("Out/s", "out", rate, { minor: true }),
    figure("Retry/s", "retried", rate, { spare: true }),
    {
      label: "Ready, 1 h",
      spare: true,
      cell: (row) =>
        sparkline(() => (live.tick(), hourOf(hours, row.name)), `Ready messages of ${row.name}, last hour`),
    },
    figure("Waiting", "waiting", count, { spare: true }),
  ];
}

/** @param {Map<string, any>} hours @param {string} name */
function hourOf(hours, name) {
  const hour = hours.get(name);
  return { times: hour?.times || [], values: hour?.values.ready || [] };
}

/** @param {string} name */
const emptyState = (name) =>
  name
    ? `No queue has “${name}” in its name.`
    : [
        h("p", {}, "There are no queues yet. The first message to a topic creates one:"),
        copyable("curl", curl("POST", "/v1/publish", { topics: ["orders.new"], message: "12 apples" })),
      ];
