/** One message: its life over all queues and consumers, its body, and what can be done to it. */

import { api, follow, url } from "../lib/api.js";
import { bodyView } from "../lib/body.js";
import { curl, literal, python } from "../lib/code.js";
import { dictionary } from "../lib/dictionary.js";
import { h } from "../lib/dom.js";
import { count, duration, seconds, time } from "../lib/format.js";
import { EVENTS, endOf, letterOf } from "../lib/letters.js";
import { removeOne } from "../lib/deleting.js";
import { statusBadge } from "../lib/messages.js";
import { redrive } from "../lib/redrive.js";
import {
  action,
  asCode,
  ask,
  attempt,
  badge,
  field,
  heading,
  loaded,
  messageLink,
  moment,
  queueLink,
  table,
} from "../lib/parts.js";

const CAUSE = "caused-by"; // The header with the id of the message because of which one was published.
const AFTER_SECONDS = 1;

const OUTCOMES = dictionary({
  F: "not settled yet",
  S: "confirmed",
  I: "invalid",
  N: "not interested",
  K: "handed over",
  R: "to be repeated",
  E: "dropped",
});

/** @param {any} route */
export const load = ({ path: [id] }) => api(`/v1/messages/${encodeURIComponent(id || "")}`);

/** @param {any} route @param {any} found */
export function page({ path: [id] }, found) {
  const again = () => dispatchEvent(new HashChangeEvent("hashchange"));
  const held = found.status === "leased";
  const place = placeOf(found).id || id;
  const order = { from: placeOf(found).queue, filter: { id: place } };
  const progress = h("div", { "aria-live": "polite" });
  return [
    heading(
      "Message",
      stateBadge(found),
      asCode(() => codeOf(id)),
      h("a", { class: "button", href: `#/publish?from=${id}` }, "Send again …"),
      held && action("Extend the lease", () => extendLease(place).then(again)),
      held && action("Give back", () => giveBack(place).then(again)),
      found.queued &&
        !held &&
        action(failureOf(found) ? "Redrive …" : "Move …", () => redrive([order], progress, again), {
          class: failureOf(found) ? "primary" : null,
        }),
      found.queued &&
        !held &&
        action("Delete", () => removeOne({ ...found, id: place }).then(again), { class: "plain bad" }),
    ),
    progress,
    whereabouts(found),
    strip(found.events),
    h("div", { class: "columns" }, [
      h(
        "div",
        { class: "page" },
        h(
          "section",
          {},
          h("h2", {}, "Its life"),
          timeline(found.events),
          found.complete
            ? null
            : h(
                "p",
                { class: "quiet" },
                "Some events are missing: they are past retention, or there are more than 1,000.",
              ),
        ),
        h("section", {}, h("h2", {}, "Led to"), ledTo(found)),
      ),
      h("section", {}, h("h2", {}, "Body"), bodyView(found), factList(found), results(found.events)),
    ]),
    h("section", {}, h("h2", {}, "Deliveries"), deliveries(settled(found))),
  ];
}

/** The queue that it is in now, else the one that it was in last. @param {any} found */
const placeOf = ({ id, places, queue }) => {
  const queued = places.filter((/** @type {any} */ each) => each.queued);
  return queued.find((/** @type {any} */ each) => each.id === id) || queued[0] || places[0] || { queue };
};

/** The event by which it became the dead letter that it is now, if it is one. @param {any} found */
const failureOf = (found) =>
  found.queued &&
  found.events.findLast(
    (/** @type {any} */ event) => event.state === "E" && event.to_queue && event.to_id === placeOf(found).id,
  );

/** @param {any} found */
function stateBadge(found) {
  if (found.status === "gone") return badge(...endOf(found.events));
  return failureOf(found) && found.status === "ready" ? badge("dead letter", "bad") : statusBadge(found.status);
}

/** Where it is, if it is not where it was sent to. @param {any} found */
function whereabouts(found) {
  const { queue } = placeOf(found);
  const isMoved = found.queued && found.places.every((/** @type {any} */ each) => each.id !== found.id);
  if (!isMoved || !queue || queue === found.queue) return null;
  const failure = failureOf(found);
  const reason =
    failure && (failure.reason || found.consumed.findLast((/** @type {any} */ each) => each.reason)?.reason);
  return h(
    "p",
    { class: "fine trouble" },
    h(
      "span",
      { class: "wrap" },
      "Now in ",
      queueLink(queue),
      ", came from ",
      found.queue ? queueLink(found.queue) : "another queue",
      `, ${deliveriesOf(found)}`,
      reason && `, reason: ${reason}`,
    ),
    failure && h("a", { href: `#/dead-letters/${encodeURIComponent(queue)}` }, "Look and redrive"),
  );
}

/** @param {any} found */
const deliveriesOf = ({ consumed }) => `${count(consumed.length)} ${consumed.length === 1 ? "delivery" : "deliveries"}`;

/** The letters of its life in one line, with the time between them. @param {any[]} events */
function strip(events) {
  const parts = [];
  let before = null;
  for (const event of events) {
    const passed = before === null ? 0 : seconds(event.time) - before;
    if (passed > 0) parts.push(h("span", { class: "span" }, duration(passed)));
    parts.push(letterOf(event.state));
    before = seconds(event.time);
  }
  return h(
    "div",
    { class: "strip panel", tabindex: 0, role: "img", "aria-label": `Its life: ${events.map(inWords).join(", ")}` },
    parts,
  );
}

const MORE = dictionary({ L: " and stored", E: ": its deliveries are used up" });

/** @param {any} event */
const inWords = ({ state, event }) => (state in EVENTS ? EVENTS[state] + (MORE[state] || "") : event);

/** @param {any[]} events */
function timeline(events) {
  const began = events.length ? seconds(events[0].time) : 0;
  return h(
    "ol",
    { class: "timeline" },
    events.map((event) =>
      h(
        "li",
        {},
        letterOf(event.state),
        h("b", {}, inWords(event)),
        event.consumer ? ` by ${event.consumer}` : "",
        " · ",
        event.queue ? queueLink(event.queue) : "a queue that is gone",
        event.to_queue && event.state === "E" ? [" → ", queueLink(event.to_queue)] : null,
        event.reason ? h("div", { class: "reason" }, event.reason) : null,
        h("div", { class: "gap" }, `${time(event.time)} · after ${duration(seconds(event.time) - began)}`),
      ),
    ),
  );
}

/** @param {any} found */
function factList(found) {
  const rows = {
    id: found.id,
    [found.queued ? "now in" : "was in"]: queueLink(placeOf(found).queue),
    created: moment(found.created),
    priority: found.priority,
    deliveries: count(found.consumed.length),
    "visible at": found.queued && moment(found.visible_at),
    "expires at": found.expires_at && moment(found.expires_at),
    sender: found.sender,
    topics: found.topics?.join(", "),
    object:
      found.object && found.key
        ? h(
            "a",
            { href: `#/objects/${encodeURIComponent(found.object)}/${encodeURIComponent(found.key)}` },
            `${found.object} / ${found.key}, all versions`,
          )
        : found.object,
    "follows from": found.headers?.[CAUSE] && messageLink(found.headers[CAUSE]),
    headers: found.headers && JSON.stringify(found.headers),
    "also in": found.places
      .filter((/** @type {any} */ each) => each.id !== found.id && each.queue !== placeOf(found).queue)
      .map((/** @type {any} */ each) => h("div", {}, queueLink(each.queue), " as ", messageLink(each.id))),
  };
  return h(
    "dl",
    { class: "facts panel" },
    Object.entries(rows)
      .filter(
        ([, value]) =>
          value !== null &&
          value !== undefined &&
          value !== "" &&
          value !== false &&
          !(Array.isArray(value) && !value.length),
      )
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

/** @param {any[]} events */
function results(events) {
  const found = events.filter((event) => event.result !== undefined || event.result_base64 !== undefined);
  return found.map((event) => [
    h("h3", {}, `Result${event.consumer ? ` of ${event.consumer}` : ""}`),
    bodyView({ message: event.result, message_base64: event.result_base64, mimeType: "result" }),
  ]);
}

/**
 * Each delivery with when it ended, and where the message went then. That is told of a confirmation only: what was
 * given back ended after its
 * duration, and a dead letter is ready since its last consumer was done with it.
 * @param {any} found
 */
function settled(found) {
  const { consumed, events } = found;
  const failure = failureOf(found);
  return consumed.map((/** @type {any} */ each) => {
    const began = each.fetchedTS ? seconds(each.fetchedTS) : null;
    const isHere = (/** @type {any} */ event) =>
      event.queue === each.queue && event.state === each.state && began !== null && seconds(event.time) >= began;
    const end = events.find(isHere);
    const isLast = failure && end === failure && found.status === "ready";
    const took = each.durationMS === null ? null : each.durationMS / 1000;
    const ended = each.confirmedTS
      ? seconds(each.confirmedTS)
      : began !== null && took !== null
        ? began + took
        : isLast
          ? seconds(found.visible_at)
          : null;
    return { ...each, ended, took: took ?? (ended && began && ended - began), to: end?.to_queue };
  });
}

/** @param {any[]} consumed */
const deliveries = (consumed) =>
  table(
    "Deliveries",
    [
      { label: "Consumer", cell: (row) => row.consumerId || "(no name)" },
      { label: "Queue", minor: true, cell: (row) => queueLink(row.queue) },
      { label: "Delivered", cell: (row) => moment(row.fetchedTS) },
      { label: "Settled", minor: true, cell: (row) => moment(row.ended) },
      { label: "Took", number: true, cell: (row) => duration(row.took) },
      {
        label: "Outcome",
        cell: ({ state, to }) => [letterOf(state), " ", to ? ["dead letter → ", queueLink(to)] : OUTCOMES[state]],
      },
      { label: "Reason", grow: true, cell: (row) => (row.reason ? h("span", { class: "wrap" }, row.reason) : "–") },
    ],
    consumed,
    { empty: "It was not delivered yet." },
  );

const FOLLOWERS_MAX = 50;
const LOOK_MS = 15_000;

/** The messages that were published because of this one: between its first delivery and its end. @param {any} found */
function ledTo({ id, places, events }) {
  const first = events.find((/** @type {any} */ event) => "FK".includes(event.state));
  if (!first) return h("p", { class: "quiet" }, "Nothing yet: it was not delivered.");
  const since = seconds(first.time);
  const until = Math.max(...events.map((/** @type {any} */ event) => seconds(event.time))) + AFTER_SECONDS;
  const ids = new Set([id, ...places.map((/** @type {any} */ each) => each.id)]);
  return loaded(
    () => followers([...ids], since, until),
    ({ rows, whole }) => [
      table("Messages that follow from it", FOLLOWERS, rows, {
        empty:
          `No message that was published while it was worked on names it as its cause (header ` +
          `${CAUSE}). Jobs of a worker do so by themselves.`,
      }),
      whole
        ? null
        : h(
            "p",
            { class: "quiet" },
            `The Event Log was read for ${LOOK_MS / 1000} s, or ${FOLLOWERS_MAX} messages were found: there ` +
              `may be more.`,
          ),
    ],
  );
}

/** @param {string[]} ids @param {number} since @param {number} until */
async function followers(ids, since, until) {
  /** @type {any[]} */
  const rows = [];
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), LOOK_MS);
  let whole = true;
  for (const id of ids.slice(0, 5)) {
    const path = url("/v1/events", {
      caused_by: id,
      state: "L",
      bodies: "false",
      since: since.toFixed(3),
      until: until.toFixed(3),
      limit: FOLLOWERS_MAX,
    });
    await follow(path, (event) => rows.push(event), abort.signal).catch((error) => {
      if (!abort.signal.aborted) throw error;
      whole = false;
    });
  }
  clearTimeout(timer);
  return { rows, whole: whole && rows.length < FOLLOWERS_MAX };
}

/** @type {import("../lib/parts.js").Column[]} */
const FOLLOWERS = [
  { label: "Message", cell: (row) => messageLink(row.id) },
  { label: "Queue", cell: (row) => queueLink(row.queue) },
  { label: "Published", cell: (row) => moment(row.time) },
  { label: "By", minor: true, cell: (row) => row.sender || "–" },
];

/** @param {string} id */
async function giveBack(id) {
  if (
    await ask({
      title: "Give the message back?",
      text: "Its consumer loses the lease, and another can receive it.",
      act: "Give back",
    })
  ) {
    await attempt(
      () => api("/v1/confirm", { method: "POST", json: { id, outcome: "retry" } }),
      "The message is given back",
    );
  }
}

/** @param {string} id */
async function extendLease(id) {
  const input = field("Seconds from now", { type: "number", min: 1, value: 60 });
  if (await ask({ title: "Extend the lease?", fields: input, act: "Extend" })) {
    const wanted = Number(/** @type {HTMLInputElement} */ (input.querySelector("input")).value);
    await attempt(() => api("/v1/extend", { method: "POST", json: { id, seconds: wanted } }), "The lease is extended");
  }
}

/** @param {string} id */
const codeOf = (id) => ({
  curl: curl("GET", `/v1/messages/${id}`),
  python: python(`print(client.message(${literal(id)}))`),
});
