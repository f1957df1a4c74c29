/** Overview: is all well, and if not, where. */

import { send } from "../lib/api.js";
import { curl, python } from "../lib/code.js";
import { h } from "../lib/dom.js";
import { age, bytes, change, count, duration, plural, rate } from "../lib/format.js";
import { chart, sparkline } from "../lib/chart.js";
import { connection, extend, figures, isLate, seriesOf, watchFigures } from "../lib/live.js";
import { badge, copyable, heading, queueLink, table } from "../lib/parts.js";
import { effect, every, signal } from "../lib/reactive.js";
import { ORDER, healthWords, troubleBadge, wayThere } from "../lib/trouble.js";

const TILES = [
  { label: "Published", unit: "/s", field: "in", format: rate },
  { label: "Delivered", unit: "/s", field: "delivered", format: rate },
  { label: "Ready", field: "ready", format: count },
  { label: "Leased", field: "leased", format: count },
  { label: "Delayed", field: "delayed", format: count },
  { label: "Dead letters", field: "dead", format: count },
];
const [MAY_LIMIT, LIMITS] = [0.7, 0.9]; // The part of the time in which a commit is under way.

export const load = () => figures({ history: true, limit: 1 });

/** @param {any} _ @param {any} document */
export function page(_, document) {
  const live = watchFigures();
  const series = seriesOf(document);
  live.totals.set(document.totals);
  live.attention.set(document.attention);
  live.latest.set(document);
  live.listen((time, totals) => extend(series, time, totals));
  live.watch([]);
  const read = () => (live.tick(), series);
  return [
    heading("Overview", healthLine(), () => needLine(live.attention())),
    h(
      "div",
      { class: "tiles" },
      TILES.map((tile) => tileOf(tile, live, series)),
      oldestTile(live),
    ),
    h(
      "section",
      {},
      h(
        "div",
        { class: "heading" },
        h("h2", { title: ORDER }, "Queues that need you"),
        h("a", { href: "#/consumers" }, "Slowest consumers"),
      ),
      () => warning(live.latest().disk),
      () => needy(live.attention(), live.totals()),
    ),
    h(
      "dl",
      { class: "facts panel" },
      h("dt", {}, "Log"),
      h("dd", {}, () => roomLine(live.latest().disk)),
      h("dt", {}, "Disk"),
      h("dd", {}, () => diskLine(live.latest().commits)),
      document.couriers && [
        h("dt", {}, "Between shards"),
        h("dd", {}, () => courierLine(live.latest().couriers || [])),
      ],
    ),
    h("div", { class: "charts" }, [
      chart({
        title: "Messages a second",
        format: rate,
        read,
        lines: [
          { field: "in", label: "in", class: "one" },
          { field: "out", label: "out", class: "two" },
        ],
      }),
      chart({ title: "Ready", format: count, read, lines: [{ field: "ready", label: "ready", class: "one" }] }),
      chart({
        title: "Trouble, messages a second",
        format: rate,
        read,
        lines: [
          { field: "retried", label: "retried", class: "soon" },
          { field: "failed", label: "failed", class: "bad" },
        ],
      }),
    ]),
    document.totals.queues ? null : firstSteps(),
  ];
}

/** @param {any} tile @param {any} live @param {any} series */
function tileOf({ label, unit, field, format }, live, series) {
  const read = () => (live.tick(), { times: series.times, values: series.values[field] || [] });
  const alarming = () => (field === "dead" && live.totals()?.dead ? "tile bad" : "tile");
  return h(
    "div",
    { class: alarming },
    h("span", { class: "label" }, label),
    h("span", { class: "figure" }, () => format(live.totals()?.[field]), unit && h("small", {}, unit)),
    ["in", "delivered", "ready"].includes(field) && sparkline(read, `${label}, last hour`),
  );
}

/** @param {any} live */
const oldestTile = (live) =>
  h(
    "div",
    { class: "tile" },
    h("span", { class: "label" }, "Longest wait"),
    h("span", { class: "figure" }, () => (live.tick(), age(live.totals()?.ready_since ?? null))),
  );

/** @param {any[]} rows @param {any} totals */
function needy(rows, totals) {
  const fine = totals?.queues
    ? h("p", { class: "fine" }, `None of ${plural(totals.queues, "queue")}: messages are consumed, and none failed.`)
    : h("p", { class: "quiet" }, "There are no queues yet.");
  if (!rows.length) return fine;
  return [
    h("p", { class: "quiet" }, ORDER),
    table(
      "Queues that need you",
      [
        { label: "Queue", cell: (row) => queueLink(row.queue) },
        { label: "Trouble", cell: (row) => troubleBadge(row) },
        {
          label: "Why",
          grow: true,
          cell: (row) =>
            h(
              "span",
              { class: "wrap" },
              `${row.messages ? `${plural(row.messages, "message")} · ` : ""}${row.text}`,
              " ",
              wayThere(row),
            ),
        },
        { label: "Last minute", number: true, minor: true, cell: (row) => change(row.growth) },
        { label: "Waiting for", number: true, minor: true, cell: (row) => age(row.ready_since) },
      ],
      rows,
    ),
  ];
}

/** How many queues need a person, beside the health of the broker. @param {any[]} rows */
const needLine = (rows) =>
  rows.length
    ? h("span", { class: "health soon" }, `${plural(rows.length, "queue")} ${rows.length === 1 ? "needs" : "need"} you`)
    : null;

/** The disk needs a person too, if it gets tight. @param {any} disk */
const warning = (disk) =>
  disk.warning &&
  h(
    "p",
    { class: "fine trouble" },
    badge("Disk", disk.full_in_seconds !== null && disk.full_in_seconds > 86_400 ? "soon" : "bad"),
    h("span", { class: "wrap" }, `${disk.warning}: ${room(disk)}. ${disk.advice}`),
  );

/** @param {any} disk */
const room = (disk) => `${bytes(disk.free_bytes)} of ${bytes(disk.total_bytes)} free`;

/** How large the log is, and how long the disk will do. @param {any} disk */
function roomLine(disk) {
  const isYoung = disk.measured_seconds < 3540;
  const rate = isYoung ? `the rate since start, ${duration(disk.measured_seconds)}` : "the rate of the last hour";
  const written = disk.written_per_day === null ? "" : `, ${bytes(disk.written_per_day)} a day at ${rate}`;
  const kept =
    `Events are kept for ${duration(disk.retention_seconds)}; above ` +
    `${bytes(disk.retention_bytes)} the oldest go earlier.`;
  const lasts =
    disk.written_per_day === null
      ? ""
      : disk.full_in_seconds === null
        ? " At this rate the log does not fill the disk."
        : ` At this rate it is full in ${duration(disk.full_in_seconds)}.`;
  return h(
    "span",
    { title: "Messages that are still in a queue are never removed to save space." },
    `${bytes(disk.log_bytes)} in ${plural(disk.segments, "file")}${written}. ${kept} Disk: ${room(disk)}.${lasts}`,
  );
}

/** Whether the disk is what limits the broker. @param {any} commits */
function diskLine({ count: number, p99, busy }) {
  if (!number) return "Nothing was written in the last minute: not the bottleneck";
  const verdict =
    busy < MAY_LIMIT
      ? "not the bottleneck"
      : busy < LIMITS
        ? "it may become the bottleneck"
        : "it is the bottleneck, clients wait for it";
  const details =
    `99 of 100 commits took up to ${(p99 * 1000).toFixed(1)} ms until they were fsynced. One ` +
    `was under way for ${Math.round(busy * 100)} % of the last minute.`;
  return h(
    "span",
    { class: busy < LIMITS ? "" : "bad", title: details },
    `${Math.round(busy * 100)} % busy: ${verdict}`,
  );
}

/** @param {any[]} couriers */
function courierLine(couriers) {
  const slowest = couriers.reduce((one, other) => (other.lag > one.lag ? other : one), { lag: 0 });
  if (!slowest.lag) return "No message waits to be taken to another shard.";
  return [
    "The oldest message on its way waits for ",
    h("a", { href: "#/cluster" }, `${duration(slowest.lag)}, from shard ${slowest.source} to shard ${slowest.shard}`),
    ".",
  ];
}

/** Health in words, checked every five seconds. */
function healthLine() {
  const health = signal("…");
  const look = () =>
    send("/health")
      .then(
        (answer) => answer.text(),
        (error) => error.message,
      )
      .then((text) => health.set(text));
  look();
  every(5, look);
  const now = () => (isLate() ? connection() : health()); // The stream notices first that nobody answers.
  const tone = () => (now() === "green" ? "good" : now().startsWith("yellow") ? "soon" : now() === "…" ? "" : "bad");
  effect(() => connection() === "live" && look());
  return h("span", { class: () => `health ${tone()}`, role: "status" }, () => healthWords(now()));
}

function firstSteps() {
  return h(
    "section",
    {},
    h("h2", {}, "Send a first message"),
    copyable("curl", curl("POST", "/v1/publish", { topics: ["orders.new"], message: { order: 1 } })),
    copyable("Python", python('client.publish_to("orders.new", {"order": 1})')),
  );
}
