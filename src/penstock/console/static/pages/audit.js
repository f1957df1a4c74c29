/** Audit: who changed what, and what was refused. The records are messages of the queue `_audit`. */

import { api, url } from "../lib/api.js";
import { curl, literal, python } from "../lib/code.js";
import { dictionary } from "../lib/dictionary.js";
import { h } from "../lib/dom.js";
import { count, plural, time } from "../lib/format.js";
import {
  asCode,
  badge,
  button,
  choice,
  field,
  heading,
  loaded,
  messageLink,
  moment,
  table,
  valuesOf,
} from "../lib/parts.js";
import { navigate } from "../lib/route.js";

const QUEUE = "_audit";
const SHOWN = 500;
const READ = 10_000;
const HOURS = dictionary({ "the last hour": 1, "the last day": 24, "the last week": 168, "all that is kept": 0 });
const OUTCOMES = ["", "done", "refused"];

/** @param {any} route */
export function page({ query }) {
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    navigate("/audit", valuesOf(event.target));
  };
  const within = query.within in HOURS ? query.within : "the last day";
  const hours = HOURS[within];
  const since = hours ? new Date(Date.now() - hours * 3_600_000).toISOString() : "";
  const form = h(
    "form",
    { class: "form", role: "search", onsubmit: submit },
    field("Name, person, address or code", { name: "text", id: "filter", type: "search", value: query.text || "" }),
    field("Act", { name: "act", value: query.act || "", placeholder: "queue.delete" }),
    choice("Outcome", { name: "outcome", value: query.outcome || "" }, OUTCOMES),
    choice("Within", { name: "within", value: within }, Object.keys(HOURS)),
    h(
      "div",
      { class: "actions wide" },
      h("button", { type: "submit", class: "primary" }, "Show"),
      button("Clear", () => navigate("/audit")),
    ),
  );
  const wanted = { queue: QUEUE, since, text: query.text };
  return [
    heading(
      "Audit",
      asCode(() => ({
        curl: curl("GET", url("/v1/search", wanted)),
        python: python(
          `for record in ` +
            `client.search(queue="_audit"${since && `, since=${literal(since)}`}` +
            `${query.text ? `, text=${literal(query.text)}` : ""}):`,
          "    print(record.json())",
        ),
      })),
    ),
    form,
    loaded(
      () => records(wanted),
      (found) =>
        list(
          found.filter(
            (each) =>
              (!query.act || each.act.startsWith(query.act)) && (!query.outcome || each.outcome === query.outcome),
          ),
        ),
    ),
  ];
}

/** The newest first. @param {Record<string, any>} wanted @returns {Promise<any[]>} */
async function records(wanted) {
  /** @type {any[]} */
  const found = [];
  let cursor = "";
  do {
    const some = await api(url("/v1/search", { ...wanted, limit: 1000, cursor })).catch(absent);
    found.push(...some.messages.map((/** @type {any} */ each) => ({ ...each.message, id: each.id })));
    cursor = some.next;
  } while (cursor && found.length < READ);
  return found.reverse();
}

/** The queue is created with the first record. @param {any} error */
function absent(error) {
  if (error.code !== "no_queue") throw error;
  return { messages: [], next: null };
}

/** @param {any[]} rows */
function list(rows) {
  const shown = rows.slice(0, SHOWN);
  return [
    table(
      "Records",
      [
        { label: "Time", cell: (row) => moment(row.time) },
        { label: "Who", cell: (row) => h("span", { class: "name", title: row.who }, row.who) },
        { label: "From", spare: true, cell: (row) => `${row.address} ${row.dialect}` },
        { label: "Act", cell: (row) => row.act },
        {
          label: "Target",
          cell: (row) => [
            h("span", { class: "name", title: row.target }, h("span", { class: "cut" }, row.target || "–")),
            row.message ? h("div", {}, messageLink(row.message)) : null,
          ],
        },
        { label: "Outcome", cell: (row) => (row.outcome === "done" ? "done" : badge(row.code || row.outcome, "bad")) },
        { label: "Details", minor: true, grow: true, cell: (row) => h("span", { class: "wrap" }, details(row)) },
      ],
      shown,
      {
        empty:
          "No record matches. Acts that change queues, schedules, tokens or messages are recorded, and " +
          "requests that were refused for want of a token or a scope; nothing is while audit.enabled is false.",
      },
    ),
    rows.length && rows.every((row) => row.who === "anonymous")
      ? h(
          "p",
          { class: "quiet" },
          "Nobody is named, because these acts came without a token. ",
          h("a", { href: "#/tokens" }, "Set tokens"),
          ", and the audit says who acted.",
        )
      : null,
    rows.length > shown.length
      ? h("p", { class: "quiet" }, `The newest ${count(shown.length)} of ${plural(rows.length, "record")}.`)
      : null,
  ];
}

/** What changed, and how often a refusal came again. @param {any} row */
function details({ before = {}, after = {}, count: times, since }) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  const values = (/** @type {string} */ name) =>
    [before, after].filter((each) => Object.hasOwn(each, name)).map((each) => text(each[name]));
  const changes = names.map((name) => `${name} ${values(name).join(" → ")}`);
  return [...changes, ...(since ? [`${count(times || 1)} more since ${time(since)}`] : [])].join(", ") || "–";
}

/** @param {any} value */
const text = (value) => (value === null ? "(none)" : typeof value === "object" ? JSON.stringify(value) : String(value));
