/** Queues that need a person: their trouble in one word, why, and the way there. */

import { dictionary } from "./dictionary.js";
import { h } from "./dom.js";
import { badge } from "./parts.js";

const WORDS = dictionary({
  damaged: "Damaged",
  push: "Push fails",
  dead_letters: "Dead letters",
  unconsumed: "No consumer",
  failing: "Failing",
  growing: "Growing",
  retries: "Retries pile up",
  old: "Old",
});

/** @param {any} row */
export const troubleBadge = ({ reason }) =>
  badge(WORDS[reason], ["growing", "old", "unconsumed", "retries"].includes(reason) ? "soon" : "bad");

/** In which order they come. */
export const ORDER =
  "What cannot be delivered comes first, then what gets worse (growing, no consumer, failing, retries that " +
  "pile up), then what only waits (old messages, dead letters).";

/** Health in the words that all pages use. @param {string} text of `/health`, or why it does not answer */
export const healthWords = (text) =>
  text === "green" ? "Broker healthy" : /^(yellow|red)/.test(text) ? `Broker ${text}` : text;

/** @param {any} row */
export function wayThere(row) {
  const name = encodeURIComponent(row.queue);
  if (row.reason === "dead_letters") return h("a", { href: `#/dead-letters/${name}` }, "Look and redrive");
  if (row.reason === "push") return h("a", { href: "#/topics" }, "Push endpoints");
  if (row.reason === "growing") return h("a", { href: `#/consumers?queue=${name}` }, "Consumers");
  if (row.reason === "retries") return h("a", { href: `#/queues/${name}?state=delayed` }, "Delayed messages");
  return null; // Its name leads to its page.
}
