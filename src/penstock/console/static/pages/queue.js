/** One queue: its figures, its messages, who consumes it, and its settings. */

import { api, url } from "../lib/api.js";
import { chart } from "../lib/chart.js";
import { curl, literal, python } from "../lib/code.js";
import { h, show } from "../lib/dom.js";
import { age, count, duration, plural, rate } from "../lib/format.js";
import { extend, figures, seriesOf, watchFigures } from "../lib/live.js";
import { messageList } from "../lib/messages.js";
import { action, asCode, ask, attempt, badge, copyable, heading, loaded, queueLink, table } from "../lib/parts.js";
import { navigate } from "../lib/route.js";
import { editSettings, written } from "./queue_settings.js";

const STATES = ["all", "ready", "leased", "delayed", "kept", "damaged"];
const TILES = [["Ready", "ready"], ["Leased", "leased"], ["Delayed", "delayed"], ["Kept", "kept"], ["Waiting", "waiting"]];

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
  live.listen((time) => live.queues.has(name) && extend(series, time, /** @type {any} */ (live.queues.get(name))));
  live.watch([name]);
  const read = () => (live.tick(), series);
  const kind = queue.topics ? badge("channel") : found.queues[0]?.dead_letters ? badge("dead letters", "bad") : null;
  return [
    heading(name, kind, asCode(() => codeOf(at, name)), h("a", { class: "button", href: `#/publish?queue=${encodeURIComponent(name)}` }, "Publish"), action("Purge", () => purge(at, name, now())), action("Delete", () => removeQueue(at, name, now()), { class: "plain bad" })),
    h("div", { class: "tiles" }, TILES.map(([label, field]) => h("div", { class: "tile" }, h("span", { class: "label" }, label), h("span", { class: "figure" }, () => count(now()[field] ?? 0)))),
      h("div", { class: "tile" }, h("span", { class: "label" }, "Longest wait"), h("span", { class: "figure" }, () => age(now().ready_since)))),
    h("div", { class: "charts" }, [
      chart({ title: "Ready", format: count, read, lines: [{ field: "ready", label: "ready", class: "one" }] }),
      chart({ title: "Messages a second", format: rate, read, lines: [{ field: "in", label: "in", class: "one" }, { field: "out", label: "out", class: "two" }] }),
      chart({ title: "Trouble, messages a second", format: rate, read, lines: [{ field: "retried", label: "retried", class: "soon" }, { field: "failed", label: "failed", class: "bad" }] }),
    ]),
    messagesSection(name, query),
    h("div", { class: "columns" }, consumersSection(name), settingsSection(queue)),
  ];
}

/** @param {string} name @param {Record<string, string>} query */
function messagesSection(name, query) {
  const place = h("div", {});
  const tabs = STATES.map((state) => h("button", { type: "button", role: "tab", onclick: () => choose(state) }, state));
  const choose = (/** @type {string} */ state, quiet = true) => {
    tabs.forEach((tab, at) => tab.setAttribute("aria-selected", String(STATES[at] === state)));
    if (quiet) navigate(`/queues/${encodeURIComponent(name)}`, { state: state === "all" ? "" : state }, { quiet });
    const empty = [h("p", {}, state === "all" ? "Nothing is in the queue now. Send it a message:" : `No message is ${state}.`), state === "all" && copyable("curl", curl("POST", `/v1/queues/${encodeURIComponent(name)}/messages`, { message: "hello" }))];
    show(place, messageList({ queue: name, state: state === "all" ? "" : state }, { withQueue: false, empty }));
  };
  choose(STATES.includes(query.state) ? query.state : "all", false);
  return h("section", {}, h("h2", {}, "Messages"), h("div", { class: "tabs", role: "tablist", "aria-label": "Messages by state" }, tabs), place);
}

/** Who waits for messages, and who holds some. @param {string} name */
function consumersSection(name) {
  const load = () => Promise.all([api(url("/v1/connections", { queue: name })), api(url("/v1/search", { queue: name, state: "leased", bodies: "false", limit: 1000 }))]);
  return h("section", {}, h("h2", {}, "Consumers"), loaded(load, ([{ waiting }, { messages }]) => {
    /** @type {Map<string, {consumer: string, waits: number, holds: number}>} */
    const rows = new Map();
    const row = (/** @type {string|null} */ consumer) => {
      const key = consumer || "(no name)";
      return rows.get(key) || /** @type {any} */ (rows.set(key, { consumer: key, waits: 0, holds: 0 }).get(key));
    };
    for (const each of waiting) row(each.consumer).waits += 1;
    for (const each of messages) row(each.consumer).holds += 1;
    return table("Consumers", [
      { label: "Consumer", cell: (each) => each.consumer },
      { label: "Waits", number: true, cell: (each) => each.waits },
      { label: "Holds", number: true, cell: (each) => count(each.holds) },
    ], [...rows.values()], { empty: "Nobody waits for messages or holds one." });
  }));
}

/** @param {any} queue */
function settingsSection(queue) {
  const { name, status, topics, push, ...settings } = queue;
  const edit = async () => (await editSettings(queue)) && dispatchEvent(new HashChangeEvent("hashchange"));
  const rows = Object.entries(settings).map(([key, value]) => [h("dt", {}, key), h("dd", {}, shown(key, value))]);
  const sources = topics && [h("dt", {}, "topics"), h("dd", {}, topics.join(", "))];
  const pushed = push && [h("dt", {}, "push"), h("dd", {}, push.url, " ", badge(push.circuit || "", push.circuit === "closed" ? "" : "bad"), push.last_error && h("p", { class: "quiet" }, push.last_error))];
  return h("section", {}, h("div", { class: "heading" }, h("h2", {}, "Settings"), action("Edit", edit)), h("dl", { class: "facts panel" }, sources, pushed, rows, h("dt", {}, "messages ever"), h("dd", {}, count(status.last_sequence))));
}

/** @param {string} key @param {any} value */
function shown(key, value) {
  if (key === "redrive_policy" && value) return [queueLink(value.dead_letter_queue), ` after ${plural(value.max_receives, "delivery").replace("deliverys", "deliveries")}`];
  if (key.endsWith("_timeout") || key.endsWith("_delay")) return value === null ? "never" : duration(value);
  return written(value);
}

/** @param {string} at @param {string} name @param {any} now */
async function purge(at, name, now) {
  const number = now.ready + now.leased + now.delayed + now.kept + now.damaged;
  const title = `Delete ${plural(number, "message")} from ${name}?`;
  if (await ask({ title, text: "The queue stays. This cannot be undone.", act: "Delete messages", typed: name, danger: true })) {
    await attempt(() => api(`${at}/messages`, { method: "DELETE" }), (job) => `${plural(job.deleted, "message")} deleted${job.state === "done" ? "" : " so far; it goes on"}`);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** @param {string} at @param {string} name @param {any} now */
async function removeQueue(at, name, now) {
  const number = now.ready + now.leased + now.delayed + now.kept + now.damaged;
  const text = `The queue and its ${plural(number, "message")} are removed. This cannot be undone.`;
  if (await ask({ title: `Delete the queue ${name}?`, text, act: "Delete the queue", typed: name, danger: true })) {
    if (await attempt(() => api(at, { method: "DELETE" }), `${name} is deleted`)) navigate("/queues");
  }
}

/** @param {string} at @param {string} name */
const codeOf = (at, name) => ({
  curl: `${curl("GET", at)}\n${curl("GET", `${at}/messages?wait=20&consumer=me`)}`,
  python: python(`for message in client.consume(${literal(name)}):`, "    print(message.text)"),
});
