/** One queue: its figures, its messages, who consumes it, and its settings. */

import { api } from "../lib/api.js";
import { chart } from "../lib/chart.js";
import { curl, literal, python, sameAs } from "../lib/code.js";
import { h, show } from "../lib/dom.js";
import { age, change, count, duration, plural, rate } from "../lib/format.js";
import { extend, figures, seriesOf, watchFigures } from "../lib/live.js";
import { messageList } from "../lib/messages.js";
import {
  action,
  asCode,
  ask,
  attempt,
  badge,
  classOf,
  copyable,
  frame,
  heading,
  loaded,
  note,
  queueLink,
  table,
  tableRow,
} from "../lib/parts.js";
import { navigate } from "../lib/route.js";
import { troubleBadge } from "../lib/trouble.js";
import { meaningOf } from "../lib/words.js";
import { policyText } from "./redrive_policy.js";
import { editSettings, settingsOnce, written } from "./queue_settings.js";

const STATES = ["all", "ready", "leased", "delayed", "kept", "damaged"];
const TILES = [
  ["Ready", "ready"],
  ["Leased", "leased"],
  ["Delayed", "delayed"],
  ["Kept", "kept"],
  ["Waiting", "waiting"],
];

/** @param {string} name */
const addressOf = (name) => `/v1/queues/${encodeURIComponent(name)}`;

/** @param {any} route */
export const load = ({ path: [name] }) => Promise.all([api(addressOf(name)), figures({ queue: name, history: true })]);

/** @param {any} route @param {any} data */
export function page({ path: [name], query }, [queue, found]) {
  const at = addressOf(name);
  const live = watchFigures();
  const now = () => (live.tick(), live.queues.get(name) || found.queues[0] || {});
  const series = seriesOf(found, name);
  live.listen(
    (time) => live.queues.has(name) && extend(series, time, { ...live.queues.get(name), ...live.closely.get(name) }),
  );
  live.attention.set(found.attention);
  live.watch([name], { consumers: true });
  const read = () => (live.tick(), series);
  const kind = queue.topics ? badge("channel") : found.queues[0]?.dead_letters ? badge("dead letters", "bad") : null;
  return [
    heading(
      name,
      kind,
      asCode(() => codeOf(at, name)),
      h("a", { class: "button", href: `#/publish?queue=${encodeURIComponent(name)}` }, "Publish"),
      action("Purge", () => purge(at, name, now())),
      action("Delete", () => removeQueue(at, name, now()), { class: "plain bad" }),
    ),
    () => trouble(name, live.attention()),
    h(
      "div",
      { class: "tiles" },
      TILES.map(([label, field]) =>
        h(
          "div",
          { class: "tile", title: meaningOf(label) },
          h("span", { class: "label" }, label),
          h("span", { class: "figure" }, () => count(now()[field] ?? 0)),
          field === "ready" && h("small", {}, () => `${change(now().growth)} in the last minute`),
        ),
      ),
      h(
        "div",
        { class: "tile" },
        h("span", { class: "label" }, "Longest wait"),
        h("span", { class: "figure" }, () => age(now().ready_since)),
      ),
    ),
    h("div", { class: "charts" }, [
      chart({ title: "Ready", format: count, read, lines: [{ field: "ready", label: "ready", class: "one" }] }),
      chart({
        title: "Messages a second",
        format: rate,
        read,
        lines: [
          { field: "in", label: "in", class: "one" },
          { field: "out", label: "out", class: "two" },
        ],
      }),
      chart({
        title: "Wait before delivery, last minute",
        format: duration,
        read,
        least: 0.01,
        lines: [
          { field: "wait_p50", label: "half within", class: "one" },
          { field: "wait_p99", label: "99 % within", class: "two" },
        ],
      }),
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
    consumersSection(name, live),
    messagesSection(name, query, now),
    h("div", { class: "columns" }, channelsSection(name, queue), settingsSection(queue)),
  ];
}

/** Why the queue needs a person, as in the overview. @param {string} name @param {any[]} rows */
function trouble(name, rows) {
  const row = rows.find((each) => each.queue === name);
  return (
    row &&
    h(
      "p",
      { class: "fine trouble" },
      troubleBadge(row),
      h("span", { class: "wrap" }, row.text),
      row.reason === "dead_letters" &&
        h("a", { href: `#/dead-letters/${encodeURIComponent(name)}` }, "Look and redrive"),
    )
  );
}

/** @param {string} name @param {Record<string, string>} query @param {() => any} now */
function messagesSection(name, query, now) {
  const total = (/** @type {string} */ state) =>
    (state === "all" ? STATES.slice(1) : [state]).reduce((sum, each) => sum + (now()[each] || 0), 0);
  const place = h("div", {});
  const tabs = STATES.map((state) => h("button", { type: "button", role: "tab", onclick: () => choose(state) }, state));
  const choose = (/** @type {string} */ state, quiet = true) => {
    tabs.forEach((tab, at) => tab.setAttribute("aria-selected", String(STATES[at] === state)));
    if (quiet) navigate(`/queues/${encodeURIComponent(name)}`, { state: state === "all" ? "" : state }, { quiet });
    const empty = [
      h("p", {}, state === "all" ? "Nothing is in the queue now. Send it a message:" : `No message is ${state}.`),
      state === "all" &&
        copyable("curl", curl("POST", `/v1/queues/${encodeURIComponent(name)}/messages`, { message: "hello" })),
    ];
    show(
      place,
      messageList(
        { queue: name, state: state === "all" ? "" : state },
        { withQueue: false, empty, total: () => total(state) },
      ),
    );
  };
  choose(STATES.includes(query.state) ? query.state : "all", false);
  return h(
    "section",
    {},
    h("h2", {}, "Messages"),
    h("div", { class: "tabs", role: "tablist", "aria-label": "Messages by state" }, tabs),
    place,
  );
}

/** @type {import("../lib/parts.js").Column[]} */
const CONSUMERS = [
  {
    label: "Consumer",
    cell: (each) =>
      h("span", { class: "name" }, each.consumer || "(no name)", each.isSlow && badge("longest at it", "soon")),
  },
  { label: "Time for one", number: true, cell: (each) => duration(each.seconds_p50) },
  { label: "Taken a minute", number: true, cell: (each) => rate(each.taken_per_minute) },
  { label: "Holds", number: true, cell: (each) => count(each.leases) },
  { label: "Longest held", number: true, cell: (each) => age(each.oldest_lease) },
  { label: "Waits", number: true, minor: true, cell: (each) => count(each.waiting) },
  { label: "Back/min", number: true, minor: true, cell: (each) => rate(each.retried_per_minute) },
];

/** Who takes messages, and how fast. @param {string} name @param {any} live */
function consumersSection(name, live) {
  const body = () => {
    live.tick();
    const found = live.closely.get(name);
    if (!found) return wholeRow("–");
    const rows = marked(found.consumers).map((each) => tableRow(CONSUMERS, each));
    if (found.more_consumers) rows.push(wholeRow(`and ${count(found.more_consumers)} more`));
    return rows.length ? rows : wholeRow("Nobody has taken a message in the last minute, holds one, or waits for one.");
  };
  const head = h(
    "tr",
    {},
    CONSUMERS.map((column) => h("th", { ...classOf(column), title: meaningOf(column.label) }, column.label)),
  );
  const all = h("a", { href: `#/consumers?queue=${encodeURIComponent(name)}` }, "Sort them, the slowest first");
  return h(
    "section",
    {},
    h("div", { class: "heading" }, h("h2", {}, "Consumers"), all),
    frame("Consumers", head, h("tbody", {}, body)),
  );
}

/** @param {string} text */
const wholeRow = (text) => h("tr", {}, h("td", { colspan: CONSUMERS.length, class: "quiet wrap" }, text));

/**
 * By name, so that no row jumps. One that has held a message for much longer than all others is marked.
 * @param {any[]} consumers
 */
function marked(consumers) {
  const now = Date.now() / 1000;
  const held = (/** @type {any} */ each) => (each?.oldest_lease ? now - each.oldest_lease : 0);
  const [slowest, next] = [...consumers].sort((one, other) => held(other) - held(one));
  const isSlow = consumers.length > 1 && held(slowest) > 5 && held(slowest) > 3 * held(next);
  const byName = [...consumers].sort((one, other) => (one.consumer || "").localeCompare(other.consumer || ""));
  return byName.map((each) => ({ ...each, isSlow: isSlow && each === slowest }));
}

/** Whether a pattern can match a topic of this queue. @param {string} name @param {string} pattern */
function feeds(name, pattern) {
  const start = pattern.slice(0, -1);
  if (pattern.endsWith("*")) return `${name}.`.startsWith(start) || start.startsWith(`${name}.`);
  return pattern.split(".")[0] === name;
}

/** The channels that get copies of the messages with topics of this queue. @param {string} name @param {any} queue */
function channelsSection(name, queue) {
  if (queue.topics) return null;
  return h(
    "section",
    {},
    h("h2", {}, "Channels"),
    loaded(
      () => api("/v1/channels?limit=1000"),
      ({ channels }) => {
        const rows = channels
          .map((/** @type {any} */ each) => ({
            ...each,
            patterns: each.topics.filter((/** @type {string} */ pattern) => feeds(name, pattern)),
          }))
          .filter((/** @type {any} */ each) => each.patterns.length);
        return table(
          "Channels",
          [
            { label: "Channel", cell: (row) => queueLink(row.name) },
            {
              label: "Gets copies of",
              cell: (row) => row.patterns.map((/** @type {string} */ pattern) => badge(pattern, "accent")),
            },
            { label: "Ready", number: true, cell: (row) => count(row.status.ready) },
          ],
          rows,
          { empty: `No channel has a pattern for topics that begin with ${name}.` },
        );
      },
    ),
  );
}

/**
 * The settings. After a change they are drawn anew where they are, and what was changed is marked.
 * @param {any} queue
 */
function settingsSection(queue) {
  const place = h("div", {});
  const draw = async (/** @type {any} */ now, /** @type {string[]} */ changed) =>
    show(place, settingList(await settingsOnce(now), changed));
  const edit = async () => {
    const now = await api(addressOf(queue.name));
    const changed = await editSettings(now);
    if (changed.length) await draw(await api(addressOf(queue.name)), changed);
  };
  draw(queue, []).catch((error) => note(error, "failed"));
  return h(
    "section",
    {},
    h(
      "div",
      { class: "heading" },
      h("h2", {}, "Settings"),
      action("Edit", () => edit().catch((error) => note(error, "failed"))),
    ),
    place,
  );
}

/** @param {any} queue @param {string[]} changed */
function settingList(queue, changed) {
  const { name, status, topics, push, ...settings } = queue;
  const rows = Object.entries(settings).map(([key, value]) => [
    h("dt", {}, key),
    h(
      "dd",
      { class: changed.includes(key) && "changed" },
      shown(key, value),
      changed.includes(key) && badge("changed", "accent"),
    ),
  ]);
  const sources = topics && [h("dt", {}, "topics"), h("dd", {}, topics.join(", "))];
  const pushed = push && [
    h("dt", {}, "push"),
    h(
      "dd",
      {},
      push.url,
      " ",
      badge(push.circuit || "", push.circuit === "closed" ? "" : "bad"),
      push.last_error && h("p", { class: "quiet" }, push.last_error),
    ),
  ];
  return h(
    "dl",
    { class: "facts panel" },
    sources,
    pushed,
    rows,
    h("dt", {}, "messages ever"),
    h("dd", {}, count(status.last_sequence)),
  );
}

/** @param {string} key @param {any} value */
function shown(key, value) {
  if (key === "redrive_policy" && value)
    return [queueLink(value.dead_letter_queue), policyText(value).slice(value.dead_letter_queue.length)];
  if (key.endsWith("_timeout") || key.endsWith("_delay") || key === "lease")
    return value === null ? "never" : duration(value);
  return written(key, value);
}

/** @param {string} at @param {string} name @param {any} now */
async function purge(at, name, now) {
  const number = now.ready + now.leased + now.delayed + now.kept + now.damaged;
  const title = `Delete ${plural(number, "message")} from ${name}?`;
  if (
    await ask({
      title,
      text: "The queue stays. This cannot be undone.",
      act: "Delete messages",
      typed: name,
      danger: true,
      code: () =>
        sameAs(
          ["queues", "purge", name, "--yes"],
          ["DELETE", `${at}/messages`],
          `client.queues.purge(${literal(name)})`,
        ),
    })
  ) {
    await attempt(
      () => api(`${at}/messages`, { method: "DELETE" }),
      (job) => `${plural(job.deleted, "message")} deleted${job.state === "done" ? "" : " so far; it goes on"}`,
    );
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** @param {string} at @param {string} name @param {any} now */
async function removeQueue(at, name, now) {
  const number = now.ready + now.leased + now.delayed + now.kept + now.damaged;
  const text = `The queue and its ${plural(number, "message")} are removed. This cannot be undone.`;
  if (
    await ask({
      title: `Delete the queue ${name}?`,
      text,
      act: "Delete the queue",
      typed: name,
      danger: true,
      code: () => sameAs(["queues", "delete", name, "--yes"], ["DELETE", at], `client.queues.delete(${literal(name)})`),
    })
  ) {
    if (await attempt(() => api(at, { method: "DELETE" }), `${name} is deleted`)) navigate("/queues");
  }
}

/** @param {string} at @param {string} name */
const codeOf = (at, name) => ({
  curl: `${curl("GET", at)}\n${curl("GET", `${at}/messages?wait=20&consumer=me`)}`,
  python: python(`for message in client.consume(${literal(name)}):`, "    print(message.text)"),
});
