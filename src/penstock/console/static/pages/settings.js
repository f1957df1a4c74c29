/** Settings: those in effect, where each comes from, and the health of the broker in words. */

import { api, facts, send } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { bytes, duration } from "../lib/format.js";
import { badge, field, heading, loaded, table } from "../lib/parts.js";
import { navigate } from "../lib/route.js";
import { healthWords } from "../lib/trouble.js";

export const load = () => api("/v1/settings");

/** @param {any} route @param {any} data */
export function page({ query }, { settings }) {
  const place = h("div", {});
  const draw = (/** @type {string} */ text) =>
    show(
      place,
      rowsOf(
        settings.filter(
          (/** @type {any} */ row) => row.key.includes(text) || row.description.toLowerCase().includes(text),
        ),
      ),
    );
  const typed = (/** @type {any} */ event) => {
    navigate("/settings", { filter: event.target.value }, { quiet: true });
    draw(event.target.value.toLowerCase());
  };
  draw((query.filter || "").toLowerCase());
  return [
    heading("Settings", h("a", { class: "button", href: "#/tokens" }, "Tokens")),
    loaded(
      () =>
        send("/health").then(
          (answer) => answer.text(),
          (error) => error.message,
        ),
      (health) =>
        h(
          "dl",
          { class: "facts panel" },
          h("dt", {}, "health"),
          h("dd", {}, healthWords(health)),
          h("dt", {}, "version"),
          h("dd", {}, facts.version),
          h("dt", {}, "this console"),
          h("dd", {}, facts.readOnly ? "reads only" : "may change what your token allows"),
        ),
    ),
    h(
      "div",
      { class: "filters" },
      field("Filter", { type: "search", id: "filter", value: query.filter || "", oninput: typed }),
    ),
    place,
  ];
}

/** @param {any[]} rows */
const rowsOf = (rows) =>
  table(
    "Settings",
    [
      {
        label: "Setting",
        cell: (row) =>
          h(
            "span",
            { class: "mono setting" },
            row.key.split(/(?<=[._])/).map((part) => [part, h("wbr")]),
          ),
      },
      { label: "Value", cell: (row) => h("span", { class: "mono value" }, shown(row.value), unit(row.key, row.value)) },
      {
        label: "From",
        cell: (row) =>
          row.source === "default" ? h("span", { class: "quiet" }, "default") : badge(row.source, "accent"),
      },
      { label: "Default", minor: true, cell: (row) => h("span", { class: "mono quiet value" }, shown(row.default)) },
      {
        label: "What it is",
        minor: true,
        grow: true,
        cell: (row) => h("span", { class: "about" }, row.description.replaceAll("`", "")),
      },
    ],
    rows,
    { empty: "No setting matches." },
  );

/** A large number as people read it. @param {string} key @param {any} value */
function unit(key, value) {
  if (typeof value !== "number") return null;
  const text =
    key.includes("bytes") && value >= 1024
      ? bytes(value)
      : key.includes("seconds") && value >= 100
        ? duration(value)
        : "";
  return text && h("div", { class: "quiet" }, text);
}

/** @param {any} value */
const shown = (value) => (Array.isArray(value) ? value.join(", ") || "none" : value === "" ? "none" : String(value));
