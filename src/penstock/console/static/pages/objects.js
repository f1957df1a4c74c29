/** Objects: the versions of one object and key, and what changed from one to the next. */

import { api } from "../lib/api.js";
import { textOf } from "../lib/body.js";
import { h, show } from "../lib/dom.js";
import { time } from "../lib/format.js";
import { button, field, heading, messageLink, queueLink, table, valuesOf } from "../lib/parts.js";
import { navigate } from "../lib/route.js";

const LINES_MAX = 2000;

/** @param {any} route */
export const load = async ({ path: [object, key] }) =>
  object && key ? api(`/v1/objects/${encodeURIComponent(object)}/${encodeURIComponent(key)}?limit=100`) : null;

/** @param {any} route @param {any} found */
export function page({ path: [object, key] }, found) {
  const open = (/** @type {any} */ event) => {
    event.preventDefault();
    const given = /** @type {Record<string, string>} */ (valuesOf(event.target));
    if (given.object && given.key)
      navigate(`/objects/${encodeURIComponent(given.object)}/${encodeURIComponent(given.key)}`);
  };
  const form = h(
    "form",
    { class: "filters", role: "search", onsubmit: open },
    field("Object", { name: "object", id: "filter", value: object || "", required: true }),
    field("Key", { name: "key", value: key || "", required: true }),
    h("button", { type: "submit", class: "primary" }, "Show versions"),
  );
  if (!found)
    return [
      heading("Objects"),
      form,
      h(
        "p",
        { class: "quiet" },
        "A message with an object and a key is compared with the last one with the same two. Each change is a version.",
      ),
    ];
  const place = h("div", {});
  const compare = (/** @type {any} */ version) => {
    const before = found.history.find((/** @type {any} */ each) => each.version === version.version - 1);
    return showDiff(place, before, version);
  };
  if (found.history.length) compare(found.history[0]);
  return [
    heading(`${object} / ${key}`),
    form,
    table(
      "Versions",
      [
        { label: "Version", number: true, cell: (row) => row.version },
        { label: "Changed", cell: (row) => time(row.changed) },
        { label: "Message", cell: (row) => messageLink(row.id) },
        { label: "Queue", minor: true, cell: (row) => (row.queue ? queueLink(row.queue) : "gone") },
        { label: "", cell: (row) => button("What changed", () => compare(row)) },
      ],
      found.history,
    ),
    place,
  ];
}

/** @param {Element} place @param {any} before @param {any} version */
async function showDiff(place, before, version) {
  const load = (/** @type {any} */ each) =>
    each
      ? api(`/v1/messages/${each.id}`).then(
          (found) => textOf(found) ?? "(bytes)",
          () => "(no longer in the log)",
        )
      : "";
  const [old, now] = await Promise.all([load(before), load(version)]);
  const title = before ? `Version ${before.version} → ${version.version}` : `Version ${version.version}`;
  show(
    place,
    h(
      "section",
      {},
      h("h2", {}, title),
      h("div", { class: "code" }, h("pre", { class: "diff", tabindex: 0 }, lines(String(old), String(now)))),
    ),
  );
}

/** The lines of both texts, marked where only one has them. @param {string} old @param {string} now */
function lines(old, now) {
  const [a, b] = [old, now].map((text) => (text ? text.split("\n").slice(0, LINES_MAX) : []));
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const shown = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) shown.push(h("span", {}, `  ${a[(i += 1) - 1]}\n`)) && (j += 1);
    else if (j >= b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1]))
      shown.push(h("span", { class: "gone" }, `- ${a[(i += 1) - 1]}\n`));
    else shown.push(h("span", { class: "added" }, `+ ${b[(j += 1) - 1]}\n`));
  }
  return shown;
}
