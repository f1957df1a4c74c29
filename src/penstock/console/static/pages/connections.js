/** Connections: who is connected, and who waits for what. */

import { api } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { bytes, count, duration, plural } from "../lib/format.js";
import { badge, heading, queueLink, table } from "../lib/parts.js";
import { every } from "../lib/reactive.js";

export const load = () => api("/v1/connections?limit=1000");

/** @param {any} _ @param {any} found */
export function page(_, found) {
  const place = h("div", { class: "columns" }, sections(found));
  every(5, () => load().then((now) => show(place, sections(now)), () => {}));
  return [heading("Connections"), place];
}

/** @param {any} found */
function sections(found) {
  const protocols = Object.entries(Object.groupBy(found.connections, (/** @type {any} */ each) => each.protocol)).map(([name, all]) => `${all?.length} ${name}`);
  return [
    h("section", {}, h("h2", {}, `${plural(found.total, "connection")}${protocols.length ? `: ${protocols.join(", ")}` : ""}`), table("Connections", [
      { label: "Protocol", cell: (row) => badge(row.protocol) },
      { label: "Address", cell: (row) => h("span", { class: "mono" }, row.address) },
      { label: "Open for", number: true, cell: (row) => duration(row.seconds) },
      { label: "State", cell: (row) => (row.busy ? "waits or is served" : "idle") },
      { label: "Unread", number: true, minor: true, cell: (row) => bytes(row.unsent_bytes) },
    ], found.connections, { empty: "Only administrators see connections." })),
    h("section", {}, h("h2", {}, `${count(found.total_waiting)} waiting`), table("Clients that wait", [
      { label: "Queue", cell: (row) => queueLink(row.queue) },
      { label: "As", cell: (row) => row.kind },
      { label: "Consumer", cell: (row) => row.consumer || "(no name)" },
    ], found.waiting, { empty: "Nobody waits for a message." })),
  ];
}
