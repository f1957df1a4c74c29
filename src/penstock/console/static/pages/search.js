/** Search: messages that queues hold now, by queue, topic, state, object, time and text; by text also finished ones. */

import { url } from "../lib/api.js";
import { curl, literal, python } from "../lib/code.js";
import { h } from "../lib/dom.js";
import { finishedList } from "../lib/finished.js";
import { messageList } from "../lib/messages.js";
import { asCode, button, choice, field, heading, valuesOf } from "../lib/parts.js";
import { hashOf, navigate } from "../lib/route.js";

const STATES = ["", "ready", "leased", "delayed", "kept", "damaged"];
const FIELDS = ["queue", "topic", "state", "object", "key", "since", "until", "text"];
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** @param {any} route */
export function page({ query }) {
  const wanted = Object.fromEntries(FIELDS.filter((name) => query[name]).map((name) => [name, query[name]]));
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    const values = valuesOf(event.target);
    if (ID.test(String(values.text || "").trim())) navigate(`/messages/${String(values.text).trim()}`);
    else navigate("/search", { ...values, all: FIELDS.some((name) => values[name]) ? "" : "true" });
  };
  const form = h(
    "form",
    { class: "form", role: "search", onsubmit: submit },
    field("Text in the body, or an id", { name: "text", id: "filter", type: "search", value: query.text || "" }),
    field("Queue", { name: "queue", value: query.queue || "" }),
    choice("State", { name: "state", value: query.state || "" }, STATES),
    field("Topic", { name: "topic", value: query.topic || "", placeholder: "fruit.*" }),
    field("Object", { name: "object", value: query.object || "" }),
    field("Key", { name: "key", value: query.key || "" }),
    field("Since", { name: "since", value: query.since || "", placeholder: "2026-01-31T12:00:00Z" }),
    field("Until", { name: "until", value: query.until || "", placeholder: "2026-01-31T13:00:00Z" }),
    h(
      "div",
      { class: "actions wide" },
      h("button", { type: "submit", class: "primary" }, "Search"),
      button("Clear", () => navigate("/search")),
    ),
  );
  const asked = Object.keys(wanted).length > 0 || query.all;
  const code = asCode(() => ({
    curl: curl("GET", url("/v1/search", wanted)),
    python: python(
      `for message in client.search(${Object.entries(wanted)
        .map(([name, value]) => `${name}=${literal(value)}`)
        .join(", ")}):`,
      "    print(message.id)",
    ),
  }));
  return [
    heading("Search", asked && code),
    form,
    asked
      ? [messageList(wanted, { empty: nothing(wanted) }), finished(wanted)]
      : h(
          "p",
          { class: "quiet" },
          "It looks through messages that are in queues now. A text is also looked for in finished messages.",
        ),
  ];
}

/** What it means that nothing was found. @param {Record<string, string>} wanted */
const nothing = (wanted) =>
  h(
    "p",
    {},
    `No message that is in ${wanted.queue ? `the queue ${wanted.queue}` : "a queue"} now matches. All were ` +
      `looked through.`,
  );

/**
 * Messages that have left their queues. A state is one of messages in queues.
 * @param {Record<string, string>} wanted
 */
const finished = (wanted) =>
  wanted.text && !wanted.state ? finishedList(wanted) : h("p", { class: "quiet" }, whereElse(wanted));

/** Where messages are that have left their queues. @param {Record<string, string>} wanted */
const whereElse = ({ queue, topic, since }) => [
  "Messages that are finished, expired or deleted have left the queues. Give a text without a state to look " +
    "for them too. Each can be opened by its id, and all are in the ",
  h("a", { href: hashOf("/events", { queue, topic, state: "L", since: since || dayAgo() }) }, "Event Log"),
  ".",
];

const dayAgo = () => new Date(Date.now() - 86_400_000).toISOString().slice(0, 19) + "Z";
