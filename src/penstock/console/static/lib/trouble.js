/** Queues that need a person: their trouble in one word, why, and the way there. */

import { h } from "./dom.js";
import { badge } from "./parts.js";

const WORDS = {
  damaged: "Damaged",
  push: "Push fails",
  dead_letters: "Dead letters",
  unconsumed: "No consumer",
  failing: "Failing",
  growing: "Growing",
  old: "Old",
};

/** @param {any} row */
export const troubleBadge = ({ reason }) => badge(/** @type {any} */ (WORDS)[reason], ["growing", "old", "unconsumed"].includes(reason) ? "soon" : "bad");

/** @param {any} row */
export function wayThere(row) {
  const name = encodeURIComponent(row.queue);
  if (row.reason === "dead_letters") return h("a", { href: `#/dead-letters/${name}` }, "Look and redrive");
  if (row.reason === "push") return h("a", { href: "#/topics" }, "Push endpoints");
  return null; // Its name leads to its page.
}
