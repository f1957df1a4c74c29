/** Dead letters: what failed, in groups; and the way back, with a dry run first. */

import { api, url } from "../lib/api.js";
import { curl } from "../lib/code.js";
import { h } from "../lib/dom.js";
import { age, count, plural, time } from "../lib/format.js";
import { figures } from "../lib/live.js";
import { messageList } from "../lib/messages.js";
import { action, asCode, button, field, heading, loaded, queueLink, table, valuesOf } from "../lib/parts.js";
import { navigate } from "../lib/route.js";
import { codeOf, redrive } from "../lib/redrive.js";

const SAMPLE = 1000;
const FILTERS = ["reason", "origin", "topic", "object", "key", "text", "ready_since", "ready_until", "since", "until"];

/** @param {any} route */
export const load = async ({ path: [name] }) =>
  name ? null : figures({ dead_letters: true, sort: "ready", order: "descending", limit: 1000 });

/** @param {any} route @param {any} found */
export const page = ({ path: [name], query }, found) => (name ? oneQueue(name, query) : allQueues(found));

/** @param {any} found */
function allQueues(found) {
  return [
    heading("Dead letters"),
    table(
      "Dead-letter queues",
      [
        { label: "Queue", cell: (row) => h("a", { href: `#/dead-letters/${encodeURIComponent(row.name)}` }, row.name) },
        { label: "Dead letters", number: true, cell: (row) => count(row.ready) },
        { label: "Oldest", number: true, cell: (row) => age(row.ready_since) },
      ],
      found.queues,
      {
        empty: [
          h("p", {}, "No queue is a dead-letter queue. Give a queue one:"),
          h(
            "pre",
            {},
            curl("PATCH", "/v1/queues/orders", {
              redrive_policy: { max_receives: 5, dead_letter_queue: "orders.failed" },
            }),
          ),
        ],
      },
    ),
  ];
}

/** @param {string} name @param {Record<string, string>} query */
function oneQueue(name, query) {
  const filter = Object.fromEntries(FILTERS.filter((each) => query[each]).map((each) => [each, query[each]]));
  const apply = (/** @type {any} */ event) => {
    event.preventDefault();
    navigate(`/dead-letters/${encodeURIComponent(name)}`, valuesOf(event.target));
  };
  const given = (
    /** @type {string} */ label,
    /** @type {string} */ key,
    /** @type {Record<string, any>} */ more = {},
  ) => field(label, { name: key, value: query[key] || "", ...more });
  const form = h(
    "form",
    { class: "form", role: "search", onsubmit: apply },
    given("Text in the body", "text", { id: "filter", type: "search" }),
    given("Reason", "reason", { placeholder: "*timeout*" }),
    given("Came from", "origin"),
    given("Topic", "topic"),
    given("Object", "object"),
    given("Key", "key"),
    given("Failed since", "ready_since", { placeholder: "2026-01-31T12:00:00Z" }),
    given("Failed before", "ready_until", { placeholder: "2026-01-31T13:00:00Z" }),
    h(
      "div",
      { class: "actions wide" },
      h("button", { type: "submit" }, "Filter"),
      button("Clear", () => navigate(`/dead-letters/${encodeURIComponent(name)}`)),
    ),
  );
  const progress = h("div", { "aria-live": "polite" });
  const order = { from: name, filter };
  const code = asCode(() => codeOf([order], { dry_run: true }));
  return [
    heading(
      name,
      code,
      h("a", { class: "button", href: `#/queues/${encodeURIComponent(name)}` }, "Queue"),
      action("Redrive …", () => redrive([order], progress), { class: "primary" }),
    ),
    form,
    progress,
    h(
      "section",
      {},
      h("h2", {}, "Groups"),
      loaded(
        () => api(url("/v1/search", { queue: name, ...filter, limit: SAMPLE })),
        (found) =>
          groups(name, query, found, (more) => redrive([{ from: name, filter: { ...filter, ...more } }], progress)),
      ),
    ),
    h(
      "section",
      {},
      h("h2", {}, "Messages"),
      messageList(
        { queue: name, ...filter },
        { dead: true, withQueue: false, own: failureColumns(), empty: "No dead letter matches." },
      ),
    ),
  ];
}

/**
 * Why a dead letter failed, and how often it was delivered; only its events have that, so it is asked for, one after
 * the other.
 * @returns {import("../lib/parts.js").Column[]}
 */
function failureColumns() {
  let before = Promise.resolve();
  const deliveries = (/** @type {any} */ row) => {
    const place = h("span", {}, "…");
    const put = async () => {
      if (!place.isConnected) return;
      const found = await api(`/v1/messages/${row.id}`).catch(() => null);
      place.textContent = found ? count(found.consumed.length) : "–";
    };
    before = before.then(put);
    return place;
  };
  return [
    {
      label: "Reason",
      grow: true,
      cell: (row) =>
        row.reason ? h("span", { class: "wrap" }, row.reason) : h("span", { class: "quiet" }, "none reported"),
    },
    { label: "Deliveries", number: true, spare: true, cell: deliveries },
  ];
}

/**
 * Messages that failed for the same reason, came from the same queue and are about the same topic or object: what a
 * filter can find again.
 * @param {string} name @param {Record<string, string>} query @param {any} found
 * @param {(filter: Record<string, string>) => Promise<void>} move
 */
function groups(name, query, found, move) {
  const rows = grouped(found.messages);
  const narrow = (/** @type {any} */ row) =>
    button("Only these", () => navigate(`/dead-letters/${encodeURIComponent(name)}`, { ...query, ...row.filter }));
  return [
    table(
      "Groups",
      [
        { label: "Messages", number: true, cell: (row) => count(row.messages.length) },
        {
          label: "Reason",
          grow: true,
          cell: (row) =>
            row.reason
              ? h("span", { class: "wrap" }, row.reason)
              : h(
                  "span",
                  { class: "quiet" },
                  row.about.consumer ? "its last consumer still has it" : row.about.origin ? "none reported" : "–",
                ),
        },
        {
          label: "Came from",
          cell: (row) =>
            row.about.origin ? queueLink(row.about.origin) : h("span", { class: "quiet" }, "published here"),
        },
        { label: "Topic or object", spare: true, cell: (row) => row.about.topics[0] || row.about.object || "–" },
        { label: "Failed", minor: true, cell: (row) => span(row.messages) },
        {
          label: "Shape",
          spare: true,
          cell: (row) => h("span", { class: "preview mono" }, [...new Set(row.messages.map(shapeOf))].join(" · ")),
        },
        {
          label: "",
          acts: true,
          cell: (row) =>
            row.filter
              ? h(
                  "div",
                  { class: "actions tight" },
                  rows.length > 1 && narrow(row),
                  action("Redrive …", () => move(row.filter), {
                    "aria-label": `Redrive ${plural(row.messages.length, "message")} of this group`,
                  }),
                )
              : null,
        },
      ],
      rows,
      { empty: "There are no dead letters." },
    ),
    found.next ? h("p", { class: "quiet" }, `Of the first ${plural(found.messages.length, "message")}.`) : null,
  ];
}

/** @param {any[]} messages */
function grouped(messages) {
  /** @type {Map<string, {about: any, reason: string, messages: any[], filter: Record<string, string>|null}>} */
  const known = new Map();
  for (const message of messages) {
    const [topic] = message.topics;
    const reason = patternOf(message.reason || "");
    const key = JSON.stringify([reason, Boolean(message.consumer), message.origin, topic, topic ? "" : message.object]);
    const group = known.get(key) || { about: message, reason, messages: [], filter: filterOf(message, reason) };
    group.messages.push(message);
    known.set(key, group);
  }
  const rows = [...known.values()].sort((one, other) => other.messages.length - one.messages.length);
  // A filter that matches messages of another group too is none: nothing finds messages without a topic, or without a
  // reason.
  const finds = (/** @type {any} */ filter, /** @type {any} */ { reason, about }) =>
    Object.entries({ reason, origin: about.origin, topic: about.topics[0], object: about.object }).every(
      ([name, value]) => !filter[name] || filter[name] === value,
    );
  for (const row of rows) if (rows.some((each) => each !== row && finds(row.filter, each))) row.filter = null;
  return rows;
}

/**
 * What finds the messages of a group again.
 * @param {any} message
 * @param {string} reason
 * @returns {Record<string, string>}
 */
function filterOf({ origin, topics: [topic], object }, reason) {
  const about = topic ? { topic } : object ? { object } : {};
  return { ...(reason ? { reason } : {}), ...(origin ? { origin } : {}), ...about };
}

/** Reasons that differ only in a long number or an id are one: a star takes its place. @param {string} reason */
const patternOf = (reason) => reason.replace(/[\w-]*\d[\w-]*/g, (word) => (word.length > 4 ? "*" : word));

/** From when to when they failed. @param {any[]} messages */
function span(messages) {
  const times = messages.map((each) => each.visible_at).sort();
  const [first, last] = [time(times[0]), time(times.at(-1))];
  return first === last ? first : `${first} – ${last}`;
}

/** @param {any} message */
function shapeOf(message) {
  const { message: body } = message;
  if (body !== null && typeof body === "object" && !Array.isArray(body))
    return `{${Object.keys(body).sort().join(", ")}}`;
  return Array.isArray(body) ? "[…]" : message.mimeType || "bytes";
}
