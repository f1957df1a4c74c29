/** Consumers: everybody who takes messages, over all queues, the slowest first. */

import { api, url } from "../lib/api.js";
import { curl } from "../lib/code.js";
import { h, show } from "../lib/dom.js";
import { age, count, duration, plural, rate } from "../lib/format.js";
import { button, copyable, field, frame, heading, queueLink, tableRow } from "../lib/parts.js";
import { every } from "../lib/reactive.js";
import { navigate } from "../lib/route.js";
import { headCell } from "../lib/window.js";

const PAGE = 200;
const LOOK_SECONDS = 2;
const TYPING_MS = 200;
const SLOW_SECONDS = 1; // Nobody is called slow who takes less.
const SLOWER = 3; // Times as long as the others of the same queue.
const TIMES_MIN = 3; // With fewer nobody says how long it takes.

/** @param {Record<string, string>} query */
const ask = (query) =>
  api(
    url("/v1/consumers", {
      queue: query.queue,
      name: query.name,
      sort: query.sort,
      order: query.order,
      limit: query.limit || PAGE,
    }),
  );

/** @param {any} route */
export const load = ({ query }) => ask(query);

/** @param {any} route @param {any} found */
export function page({ query }, found) {
  const wanted = { ...query };
  const place = h("div", { class: "stack" });
  const sort = { by: query.sort || "time", descending: query.order !== "ascending" };
  const onsort = (/** @type {string} */ by) =>
    navigate("/consumers", { ...wanted, sort: by, order: sort.by === by && sort.descending ? "ascending" : "" });
  const draw = (/** @type {any} */ document) => show(place, list(document, sort, onsort, more));
  const look = () => ask(wanted).then(draw, () => {});
  const more = () => {
    wanted.limit = "1000";
    look();
  };
  let timer = 0;
  const typed = (/** @type {any} */ event) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      wanted.name = event.target.value;
      navigate("/consumers", wanted, { quiet: true });
      look();
    }, TYPING_MS);
  };
  draw(found);
  every(LOOK_SECONDS, look);
  const filter = field("Filter by consumer or queue", {
    type: "search",
    id: "filter",
    value: query.name || "",
    oninput: typed,
  });
  return [
    heading(
      "Consumers",
      query.queue && h("a", { class: "button", href: "#/consumers" }, "Of all queues"),
      h("a", { class: "button", href: "#/connections" }, "Connections"),
    ),
    h("div", { class: "filters" }, filter),
    place,
  ];
}

/** @type {import("../lib/parts.js").Column[]} */
const COLUMNS = [
  {
    label: "Consumer",
    sort: "consumer",
    cell: (each) =>
      h(
        "span",
        { class: "name" },
        each.consumer || "(no name)",
        each.isSlow && h("span", { class: "badge soon" }, "slow"),
      ),
  },
  { label: "Queue", sort: "queue", cell: (each) => h("span", { class: "name" }, queueLink(each.queue)) },
  {
    label: "Time for one",
    sort: "time",
    number: true,
    cell: (each) =>
      each.time !== null
        ? h("b", {}, duration(each.time))
        : each.leases || each.times
          ? h("span", { class: "quiet" }, "measuring …")
          : "–",
  },
  { label: "99 % within", sort: "p99", number: true, minor: true, cell: (each) => duration(each.seconds_p99) },
  { label: "Taken/s", sort: "taken", number: true, cell: (each) => rate(each.taken_per_minute / 60) },
  { label: "Holds", sort: "leases", number: true, cell: (each) => count(each.leases) },
  { label: "Longest held", sort: "oldest_lease", number: true, minor: true, cell: (each) => age(each.oldest_lease) },
  { label: "Does", minor: true, cell: (each) => (each.leases ? "works" : each.waiting ? "waits" : "–") },
  {
    label: "Back/min",
    sort: "retried",
    number: true,
    minor: true,
    cell: (each) => amount(each.retried_per_minute, "soon"),
  },
  {
    label: "Fails/min",
    sort: "failed",
    number: true,
    minor: true,
    cell: (each) => amount(each.failed_per_minute, "bad"),
  },
];

/** @param {number} value @param {string} tone */
const amount = (value, tone) => h("span", { class: value ? tone : "zero" }, rate(value));

/**
 * @param {any} document @param {{by: string, descending: boolean}} sort @param {(by: string) => void} onsort
 * @param {() => void} more
 */
function list({ time, seconds, total, next, consumers }, sort, onsort, more) {
  if (!consumers.length)
    return h(
      "div",
      { class: "empty" },
      h(
        "p",
        {},
        "Nobody holds a message, waits for one, or has taken one while this page was open. A consumer is " +
          "whoever receives:",
      ),
      copyable("curl", curl("GET", "/v1/queues/orders/messages?consumer=me&wait=20")),
    );
  const rows = marked(consumers, time).map((each) => tableRow(COLUMNS, each));
  const since = seconds < 60 ? `since this page was opened, ${duration(seconds)} ago` : "in the last minute";
  return [
    frame(
      "Consumers",
      h(
        "tr",
        {},
        COLUMNS.map((column) => headCell(column, sort, onsort)),
      ),
      rows,
    ),
    h(
      "p",
      { class: "quiet" },
      `${plural(total, "consumer")}. Time for one: half of its messages were settled within this time ` +
        `${since}; it is measured when there are ${TIMES_MIN}. It includes the time in the buffer of a ` +
        `client that fetches ahead.`,
    ),
    next !== null && consumers.length < 1000 && button("Show more", more),
  ];
}

/**
 * Those that take, or hold a message, much longer than the others of their queue take are marked.
 * @param {any[]} consumers
 * @param {number} now
 */
function marked(consumers, now) {
  const timed = consumers.map((each) => ({ ...each, time: each.times >= TIMES_MIN ? each.seconds_p50 : null }));
  const byQueue = Object.groupBy(timed, (each) => each.queue);
  return timed.map((each) => {
    const others = (byQueue[each.queue] || [])
      .filter((other) => other !== each && other.time !== null)
      .map((other) => other.time)
      .sort((one, other) => one - other);
    const takes = Math.max(each.time || 0, each.oldest_lease ? now - each.oldest_lease : 0);
    return {
      ...each,
      isSlow: takes > SLOW_SECONDS && others.length > 0 && takes > SLOWER * others[Math.floor(others.length / 2)],
    };
  });
}
