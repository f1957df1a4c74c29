/** Finished messages with a text: the Event Log, looked through from its end, some time of it at once. */

import { api, follow, url } from "./api.js";
import { preview } from "./body.js";
import { dictionary } from "./dictionary.js";
import { h, show } from "./dom.js";
import { plural, seconds, time } from "./format.js";
import { ENDS } from "./letters.js";
import { badge, button, messageLink, queueLink, table } from "./parts.js";

const PAGE = 50;
const FIRST_SECONDS = 60; // The part of the log that is looked at first, before its end.
const PART_MS = 2000; // A part of the log takes about so long.
const SHORTEST_SECONDS = 0.001;
const TONES = dictionary({ E: "bad", I: "bad", D: "bad", Z: "soon", N: "soon" });

/** @typedef {{since: string, until: string, signal: AbortSignal}} Part */

/**
 * The messages with a text that have left the queue they were sent to, the newest first.
 * @param {Record<string, string>} query of the page Search
 */
export function finishedList(query) {
  const status = h("span", { role: "status" });
  const list = h("div", {});
  const foot = h("div", { class: "heading foot" });
  /** @type {any[]} */
  const rows = [];
  const walk = new Walk(query);
  const draw = (/** @type {AbortController|null} */ running) => {
    show(status, walk.words(rows.length, running !== null));
    show(list, rows.length ? table("Finished messages", COLUMNS, rows) : null);
    show(
      foot,
      status,
      running
        ? button("Stop", () => running.abort())
        : walk.isOver
          ? null
          : button(rows.length ? "Look for more" : "Go on", look),
    );
  };
  const look = async () => {
    const running = new AbortController();
    const wanted = rows.length + PAGE;
    draw(running);
    try {
      while (!walk.isOver && rows.length < wanted && (list.isConnected || !rows.length)) {
        for (const event of await walk.next(running.signal)) {
          const end = await endOf(event);
          if (end) rows.push({ ...event, end });
        }
        draw(running);
      }
      draw(null);
    } catch (error) {
      draw(null);
      if (!running.signal.aborted)
        show(status, h("span", { class: "problem", role: "alert" }, /** @type {Error} */ (error).message));
    }
  };
  look();
  return h("section", {}, h("h2", {}, "Finished messages"), list, foot);
}

/** Goes through the Event Log backwards. */
class Walk {
  /** @param {Record<string, string>} query */
  constructor(query) {
    this.query = query;
    this.seconds = FIRST_SECONDS;
    /** @type {number|null} When the part of the log begins that is wanted; null: not known yet. */
    this.begin = null;
    this.reached = query.until ? momentOf(query.until) : Date.now() / 1000 + 1;
  }

  get isOver() {
    return this.begin !== null && this.reached <= this.begin;
  }

  /** The messages of the next part of the log, the newest first. @param {AbortSignal} signal */
  async next(signal) {
    if (this.begin === null) {
      const { since, until } = this.query;
      const [first] = await eventsOf({ since, until, state: "L", limit: 1, bodies: "false" }, signal);
      this.begin = first ? Math.floor(seconds(first.time)) : this.reached;
      return [];
    }
    const since = Math.max(this.begin, this.reached - this.seconds);
    const began = performance.now();
    const { text, queue, topic } = this.query;
    const found = await eventsOf(
      { text, queue, topic, state: "L", since: since.toFixed(6), until: this.reached.toFixed(6), limit: PAGE },
      signal,
    );
    if (found.length === PAGE && this.reached - since > SHORTEST_SECONDS) {
      this.seconds = (this.reached - since) / 4; // There may be newer ones: they come first.
      return [];
    }
    const took = performance.now() - began;
    this.reached = Number(since.toFixed(6));
    this.seconds *= took < PART_MS / 2 ? 4 : took > PART_MS ? 0.5 : 1;
    return found
      .reverse()
      .filter((event) => ["object", "key"].every((name) => !this.query[name] || event[name] === this.query[name]));
  }

  /** @param {number} found @param {boolean} isRunning */
  words(found, isRunning) {
    const number = found ? plural(found, "message") : "none";
    if (this.begin === null) return isRunning ? "Searching the Event Log …" : "The search was stopped.";
    if (this.isOver)
      return (
        `${found ? number : "No finished message matches"}. The Event Log was looked through back to ` +
        `${this.query.since ? "the time that you gave" : `its first event, ${time(this.begin)}`}.`
      );
    return (
      `${isRunning ? "Searching the Event Log" : "Looked through the Event Log"} back to ` +
      `${time(this.reached)}, it begins ${time(this.begin)}: ${number} so far${isRunning ? " …" : "."}`
    );
  }
}

/** Seconds since the epoch of a time that a person gave. @param {string} text */
const momentOf = (text) => (/^[0-9.]+$/.test(text) ? Number(text) : seconds(text));

/** @param {Record<string, any>} query @param {AbortSignal} signal */
async function eventsOf(query, signal) {
  /** @type {any[]} */
  const found = [];
  await follow(url("/v1/events", query), (event) => found.push(event), signal);
  return found;
}

/** What became of a message; null if it is in a queue, other than as a dead letter. @param {any} event */
async function endOf({ id }) {
  const found = await api(`/v1/messages/${id}`).catch(() => null);
  if (!found) return { state: "", words: "not known any more" };
  const ids = idsOf(id, found.events);
  const end = found.events.findLast((/** @type {any} */ event) => event.state in ENDS && ids.includes(event.id ?? id));
  const isQueued = found.places.some((/** @type {any} */ place) => place.queued && place.id === ids.at(-1));
  if (isQueued && end?.to_id !== ids.at(-1)) return null;
  if (!end) return { state: "", words: "gone" };
  const words = end.to_queue ? "dead-lettered" : ENDS[end.state];
  return {
    state: end.state,
    words,
    by: end.consumer,
    time: end.time,
    to: end.to_queue,
    reason: end.reason || reasonOf(found.consumed),
  };
}

/** The ids of a message, one for each queue that it was moved to. @param {string} id @param {any[]} events */
function idsOf(id, events) {
  const ids = [id];
  for (const event of events) {
    const isMoved =
      event.state === "E"
        ? event.id === ids.at(-1) && event.to_id
        : event.state === "Q" && event.to_id === ids.at(-1) && event.id;
    if (isMoved) ids.push(isMoved);
  }
  return ids;
}

/** Why it was given back last. @param {any[]} consumed */
const reasonOf = (consumed) => consumed.at(-1)?.reason;

/** @type {import("./parts.js").Column[]} */
const COLUMNS = [
  { label: "Message", cell: (row) => messageLink(row.id) },
  { label: "Queue", minor: true, cell: (row) => (row.queue ? queueLink(row.queue) : "–") },
  { label: "Body", grow: true, cell: (row) => h("span", { class: "preview mono", title: preview(row) }, preview(row)) },
  { label: "Published", minor: true, cell: (row) => time(row.time) },
  {
    label: "Became",
    cell: ({ end }) => [
      badge(end.words, TONES[end.state] || ""),
      end.to && [" → ", queueLink(end.to)],
      end.reason && h("div", { class: "wrap quiet" }, end.reason),
    ],
  },
  { label: "By", cell: ({ end }) => end.by || "–" },
  { label: "When", cell: ({ end }) => time(end.time) },
];
