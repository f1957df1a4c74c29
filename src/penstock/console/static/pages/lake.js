/** Lake: more than the last hour, from the tables that the pipeline fills; and how to ask them anything else. */

import { ApiError, api, url } from "../lib/api.js";
import { chart } from "../lib/chart.js";
import { curl } from "../lib/code.js";
import { dictionary } from "../lib/dictionary.js";
import { h } from "../lib/dom.js";
import { count, duration } from "../lib/format.js";
import { choice, copyable, field, heading, loaded } from "../lib/parts.js";
import { navigate } from "../lib/route.js";

const SPANS = dictionary({ "6 hours": 6 * 3600, day: 86400, week: 7 * 86400, "30 days": 30 * 86400 });
const COUNTS = ["messages_in", "messages_out", "deliveries", "retries", "dead"];

/** @param {any} route */
export function page({ query }) {
  const span = query.span in SPANS ? query.span : "day";
  const until = Math.ceil(Date.now() / 60_000) * 60;
  const path = url("/v1/lake/queue_minutes", { queue: query.queue, since: until - SPANS[span], until });
  const queue = field("Queue", {
    name: "queue",
    id: "filter",
    type: "search",
    value: query.queue || "",
    placeholder: "all queues",
  });
  const last = choice("Last", { name: "span", value: span, onchange: () => form.requestSubmit() }, Object.keys(SPANS));
  const apply = (/** @type {any} */ event) => {
    event.preventDefault();
    const values = new FormData(form);
    navigate("/lake", { queue: String(values.get("queue")).trim(), span: String(values.get("span")) });
  };
  const form = /** @type {HTMLFormElement} */ (
    h("form", { class: "filters", role: "search", onsubmit: apply }, queue, last)
  );
  return [
    heading("Lake"),
    form,
    loaded(
      () => api(path).catch(missing),
      (found) => (found.missing ? found.missing : charts(found, until - SPANS[span], SPANS[span])),
    ),
    h(
      "section",
      {},
      h("h2", {}, "Ask anything"),
      h("p", { class: "quiet" }, "The lake is files beside the broker. These commands read them; they need no Java."),
      h("div", { class: "columns" }, questions(query.queue, path)),
    ),
  ];
}

/** Without a lake, what to do about it. @param {any} error */
function missing(error) {
  if (!(error instanceof ApiError) || !["no_lake", "lake_unreadable"].includes(error.code)) throw error;
  return {
    missing: h(
      "div",
      { class: "empty" },
      h("p", {}, error.message),
      copyable("A broker with a pipeline that fills a lake", "penstock up --data ./data --lake ./lake"),
    ),
  };
}

/** @param {any} found @param {number} since @param {number} seconds */
function charts({ rows, step }, since, seconds) {
  if (!rows.length)
    return h(
      "div",
      { class: "empty" },
      "The lake has nothing about this time. It is some seconds, at the start a minute, behind the broker.",
    );
  const series = filled(rows, step, since);
  const each = step === 60 ? "a minute" : `in ${duration(step)}`;
  const common = { read: () => series, seconds, gap: 2.5 * step };
  const wait = { format: (/** @type {any} */ ms) => duration(ms === null ? null : ms / 1000), least: 10 };
  return h(
    "div",
    { class: "charts" },
    [
      chart({
        title: `Messages ${each}`,
        format: count,
        ...common,
        lines: [
          { field: "messages_in", label: "in", class: "one" },
          { field: "messages_out", label: "out", class: "two" },
        ],
      }),
      series.values.depth.some((value) => value !== null) &&
        chart({
          title: "Messages in the queue",
          format: count,
          ...common,
          lines: [{ field: "depth", label: "depth", class: "one" }],
        }),
      chart({
        title: "Wait before the first delivery",
        ...wait,
        ...common,
        lines: [
          { field: "wait_p50_ms", label: "half within", class: "one" },
          { field: "wait_p99_ms", label: "99 % within", class: "two" },
        ],
      }),
      chart({
        title: `Trouble ${each}`,
        format: count,
        ...common,
        lines: [
          { field: "retries", label: "retries", class: "soon" },
          { field: "dead", label: "dead", class: "bad" },
        ],
      }),
    ].filter(Boolean),
  );
}

/**
 * One value for each step from the first row on. A step without a row had no event: counts are 0, and the depth is that
 * of before.
 * @param {any[]} rows @param {number} step @param {number} since
 */
function filled(rows, step, since) {
  const known = new Map(rows.map((row) => [row.time, row]));
  const last = Math.floor(Date.now() / 1000 / step) * step - step;
  /** @type {import("../lib/live.js").Series} */
  const series = { times: [], values: { depth: [], wait_p50_ms: [], wait_p99_ms: [] } };
  for (const name of COUNTS) series.values[name] = [];
  let depth = null;
  for (let time = Math.max(rows[0].time, since); time <= Math.max(last, rows.at(-1).time); time += step) {
    const row = known.get(time) || {};
    depth = row.depth ?? depth;
    series.times.push(time);
    for (const name of COUNTS) series.values[name].push(row[name] ?? 0);
    series.values.depth.push(depth);
    for (const name of ["wait_p50_ms", "wait_p99_ms"]) series.values[name].push(row[name] ?? null);
  }
  return series;
}

/** @param {string|undefined} queue @param {string} path */
const questions = (queue, path) => [
  copyable(
    "Messages a minute",
    `penstock sql "select minute, messages_in, messages_out, depth from ` +
      `queue_minutes${queue ? ` where queue = '${queue.replaceAll("'", "''")}'` : ""} order by minute" --plot`,
  ),
  copyable("How messages ended", 'penstock sql "select state, count(*) from messages group by state" --plot'),
  copyable(
    "Python",
    'import penstock\n\nlake = penstock.lake("./lake")\n' +
      'print(lake.sql("select * from queue_minutes order by minute desc limit 60").to_pandas())',
  ),
  copyable("curl", curl("GET", path)),
];
