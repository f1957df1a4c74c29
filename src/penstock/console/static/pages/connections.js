/** Connections: who is connected, and who waits for what. */

import { api } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { age, bytes, count, duration, plural } from "../lib/format.js";
import { badge, heading, queueLink, table } from "../lib/parts.js";
import { every } from "../lib/reactive.js";

export const load = async () => {
  const [found, { workers }] = await Promise.all([api("/v1/connections?limit=1000"), api("/v1/workers")]);
  return { ...found, workers };
};

/** @param {any} _ @param {any} found */
export function page(_, found) {
  const place = h("div", { class: "columns" }, sections(found));
  every(5, () =>
    load().then(
      (now) => show(place, sections(now)),
      () => {},
    ),
  );
  return [heading("Connections", h("a", { class: "button", href: "#/consumers" }, "Consumers and their pace")), place];
}

/** @type {import("../lib/parts.js").Column[]} */
const WORKERS = [
  { label: "Worker", cell: (row) => h("span", { class: "name" }, row.name) },
  { label: "", cell: (row) => (row.missing ? badge("missing", "bad") : badge("working")) },
  { label: "Last heard", number: true, cell: (row) => `${age(row.heard)} ago` },
  { label: "Runs", number: true, cell: (row) => `${count(row.running)} of ${count(row.concurrency)}` },
  { label: "There for", number: true, minor: true, cell: (row) => age(row.since) },
  {
    label: "Queues",
    minor: true,
    cell: (row) =>
      h(
        "span",
        { class: "preview" },
        row.queues.map((/** @type {string} */ name, /** @type {number} */ at) => [at ? ", " : "", queueLink(name)]),
      ),
  },
];

/** @param {any} found */
function sections(found) {
  const protocols = Object.entries(Object.groupBy(found.connections, (/** @type {any} */ each) => each.protocol)).map(
    ([name, all]) => `${all?.length} ${name}`,
  );
  return [
    h(
      "section",
      { class: "whole" },
      h("h2", {}, "Workers"),
      table("Workers", WORKERS, found.workers, {
        empty: "No worker has reported. A worker of your tasks does by itself: penstock worker module:app",
      }),
    ),
    h(
      "section",
      {},
      h("h2", {}, `${plural(found.total, "connection")}${protocols.length ? `: ${protocols.join(", ")}` : ""}`),
      table(
        "Connections",
        [
          { label: "Protocol", cell: (row) => badge(row.protocol) },
          { label: "Address", cell: (row) => h("span", { class: "mono" }, row.address) },
          { label: "Open for", number: true, cell: (row) => duration(row.seconds) },
          { label: "State", cell: (row) => (row.busy ? "waits or is served" : "idle") },
          { label: "Unread", number: true, minor: true, cell: (row) => bytes(row.unsent_bytes) },
        ],
        found.connections,
        { empty: "Only administrators see connections." },
      ),
    ),
    h(
      "section",
      {},
      h("h2", {}, `${count(found.total_waiting)} waiting`),
      table(
        "Clients that wait",
        [
          { label: "Queue", cell: (row) => queueLink(row.queue) },
          { label: "As", cell: (row) => row.kind },
          { label: "Consumer", cell: (row) => row.consumer || "(no name)" },
        ],
        found.waiting,
        { empty: "Nobody waits for a message." },
      ),
    ),
  ];
}
