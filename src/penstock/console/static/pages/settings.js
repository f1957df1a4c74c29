/** Settings: those in effect, and where each comes from; the health of the broker in words; and tokens. */

import { api, facts, send } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { time } from "../lib/format.js";
import { badge, field, heading, loaded, table } from "../lib/parts.js";
import { navigate } from "../lib/route.js";

export const load = () => api("/v1/settings");

/** @param {any} route @param {any} data */
export function page({ query }, { settings }) {
  const place = h("div", {});
  const draw = (/** @type {string} */ text) => show(place, rowsOf(settings.filter((/** @type {any} */ row) => row.key.includes(text) || row.description.toLowerCase().includes(text))));
  const typed = (/** @type {any} */ event) => {
    navigate("/settings", { filter: event.target.value }, { quiet: true });
    draw(event.target.value.toLowerCase());
  };
  draw((query.filter || "").toLowerCase());
  return [
    heading("Settings"),
    loaded(() => send("/health").then((answer) => answer.text(), (error) => error.message), (health) => h("dl", { class: "facts panel" }, h("dt", {}, "health"), h("dd", {}, health), h("dt", {}, "version"), h("dd", {}, facts.version), h("dt", {}, "this console"), h("dd", {}, facts.readOnly ? "reads only" : "may change what your token allows"))),
    h("div", { class: "filters" }, field("Filter", { type: "search", id: "filter", value: query.filter || "", oninput: typed })),
    place,
    h("section", {}, h("h2", {}, "Tokens"), loaded(() => api("/v1/tokens?limit=1000"), tokens)),
  ];
}

/** @param {any} found */
const tokens = (found) => table("Tokens", [
  { label: "Name", cell: (row) => row.name },
  { label: "May", cell: (row) => h("span", { class: "mono value" }, row.scopes.join(" · ")) },
  { label: "Created", minor: true, cell: (row) => time(row.created) },
  { label: "Expires", cell: (row) => (row.expires ? time(row.expires) : "never") },
  { label: "Last used", minor: true, cell: (row) => time(row.last_used) },
], found.tokens, { empty: [h("p", {}, "There are none: create one on the command line."), h("pre", {}, "penstock token create NAME --scope admin")] });

/** @param {any[]} rows */
const rowsOf = (rows) => table("Settings", [
  { label: "Setting", cell: (row) => h("span", { class: "mono setting" }, row.key) },
  { label: "Value", cell: (row) => h("span", { class: "mono value" }, shown(row.value)) },
  { label: "From", cell: (row) => (row.source === "default" ? h("span", { class: "quiet" }, "default") : badge(row.source, "accent")) },
  { label: "Default", minor: true, cell: (row) => h("span", { class: "mono quiet value" }, shown(row.default)) },
  { label: "What it is", minor: true, cell: (row) => h("span", { class: "about" }, row.description.replaceAll("`", "")) },
], rows, { empty: "No setting matches." });

/** @param {any} value */
const shown = (value) => (Array.isArray(value) ? value.join(", ") || "none" : value === "" ? "none" : String(value));
