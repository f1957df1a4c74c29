/** Events: everything that happens, as it happens, or from a time in the past. */

import { ApiError, follow, url } from "../lib/api.js";
import { preview } from "../lib/body.js";
import { curl, literal, python } from "../lib/code.js";
import { h, show } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";
import { EVENTS, letterOf } from "../lib/letters.js";
import {
  asCode,
  button,
  field,
  heading,
  messageLink,
  moment,
  note,
  queueLink,
  tableRow,
  tick,
  valuesOf,
  frame,
  classOf,
} from "../lib/parts.js";
import { onLeave } from "../lib/reactive.js";
import { navigate } from "../lib/route.js";

const SHOWN_MAX = 300;
const DRAW_MS = 250;

/** @param {any} route */
export function page({ query }) {
  const asked = { queue: query.queue, topic: query.topic, state: query.state, text: query.text, since: query.since };
  const path = url("/v1/events", {
    ...asked,
    bodies: String(Boolean(query.text)),
    follow: "true",
    from: query.since ? "" : "latest",
  });
  const columns = query.text ? [...COLUMNS, BODY] : COLUMNS;
  const body = h("tbody", {});
  const head = h(
    "tr",
    {},
    columns.map((column) => h("th", classOf(column), column.label)),
  );
  const state = h("span", { class: "quiet", role: "status" }, "Waiting for events …");
  const abort = new AbortController();
  /** @type {any[]} */
  let fresh = [];
  let paused = false;
  let seen = 0;
  const draw = () => {
    if (paused || !fresh.length) return;
    seen += fresh.length;
    body.prepend(
      ...fresh
        .slice(-SHOWN_MAX)
        .reverse()
        .map((event) => tableRow(columns, event)),
    );
    while (body.children.length > SHOWN_MAX) body.lastElementChild?.remove();
    fresh = [];
    show(state, `${plural(seen, "event")}; the latest ${count(body.children.length)} are shown`);
  };
  const timer = setInterval(draw, DRAW_MS);
  onLeave(() => {
    clearInterval(timer);
    abort.abort();
  });
  follow(path, (event) => fresh.push(event) > 10 * SHOWN_MAX && fresh.splice(0, SHOWN_MAX), abort.signal).then(
    () => show(state, "The broker ended the stream. Open the page again."),
    (error) => abort.signal.aborted || (show(state, error.message), error instanceof ApiError || note(error, "failed")),
  );
  const toggle = (/** @type {any} */ event) => {
    paused = !paused;
    event.target.textContent = paused ? "Continue" : "Pause";
    event.target.setAttribute("aria-pressed", String(paused));
  };
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    navigate("/events", { ...valuesOf(event.target), state: new FormData(event.target).getAll("state").join("") });
  };
  const form = h(
    "form",
    { class: "filters", role: "search", onsubmit: submit },
    field("Queue", { name: "queue", id: "filter", value: query.queue || "" }),
    field("Topic", { name: "topic", value: query.topic || "" }),
    field("Text in the body", { name: "text", type: "search", value: query.text || "" }),
    field("Since", { name: "since", value: query.since || "", placeholder: "2026-01-31T12:00:00Z" }),
    h("button", { type: "submit", class: "primary" }, "Follow"),
    kinds(query.state || ""),
  );
  const code = asCode(() => codeOf(asked));
  return [
    heading("Events", code, button("Pause", toggle, { "aria-pressed": "false" })),
    form,
    state,
    frame("Events", head, body),
  ];
}

/** Boxes for the kinds of events; none ticked: all. @param {string} letters */
const kinds = (letters) =>
  h(
    "fieldset",
    { class: "kinds" },
    h("legend", {}, "Only these events; none ticked: all"),
    Object.entries(EVENTS).map(([letter, word]) =>
      tick(word, { name: "state", value: letter, checked: letters.includes(letter) }),
    ),
  );

/** @type {import("../lib/parts.js").Column[]} */
const COLUMNS = [
  { label: "Time", cell: (row) => moment(row.time) },
  { label: "", cell: (row) => letterOf(row.state) },
  { label: "Event", cell: (row) => `${EVENTS[row.state] || row.event}${row.reason ? `, ${row.reason}` : ""}` },
  { label: "Queue", cell: (row) => (row.queue ? queueLink(row.queue) : "–") },
  { label: "Message", minor: true, cell: (row) => (row.id ? messageLink(row.id) : "–") },
  { label: "Consumer", minor: true, cell: (row) => row.consumer || "–" },
  { label: "Offset", number: true, minor: true, cell: (row) => row.offset },
];

/** Only events with a body have the text that is looked for. @type {import("../lib/parts.js").Column} */
const BODY = { label: "Body", cell: (row) => h("span", { class: "preview mono" }, preview(row)) };

/** @param {Record<string, any>} asked */
function codeOf(asked) {
  const given = Object.entries(asked).filter(([name, value]) => value && name !== "since");
  const options = [...(asked.since ? [] : [["from_", "now"]]), ...given]
    .map(([name, value]) => `${name}=${literal(value)}`)
    .join(", ");
  const spark =
    `# Spark:\n# spark.readStream.format("penstock").option("url", ` + `${JSON.stringify(location.origin)}).load()`;
  return {
    curl: curl("GET", url("/v1/events", { ...asked, follow: "true" })).replace("curl", "curl -N"),
    python: `${python(`for event in client.events(${options}):`, "    print(event)")}\n\n${spark}`,
  };
}
