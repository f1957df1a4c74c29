/** The letters of events: what each means, and how it looks. */

import { dictionary } from "./dictionary.js";
import { h } from "./dom.js";

export const EVENTS = dictionary({
  L: "Received",
  U: "Unchanged",
  Q: "Queued",
  F: "Delivered",
  K: "Handed over",
  R: "Given back",
  S: "Confirmed",
  X: "Completed",
  E: "Failed",
  I: "Invalid",
  N: "Not interested",
  Z: "Expired",
  D: "Deleted",
  B: "Damaged on the disk",
});
/** How a message ends. */
export const ENDS = dictionary({
  X: "completed",
  K: "handed over",
  E: "failed",
  I: "invalid",
  N: "not interested",
  Z: "expired",
  D: "deleted",
  U: "unchanged",
});
const TONES = dictionary({
  E: "bad",
  B: "bad",
  D: "bad",
  R: "soon",
  Z: "soon",
  I: "bad",
  N: "soon",
  S: "good",
  X: "good",
  K: "good",
});

/** @param {string} letter */
export const letterOf = (letter) =>
  h("span", { class: `letter ${TONES[letter] || ""}`, title: EVENTS[letter] }, letter);

/** How a message ended, and how that looks. @param {any[]} events @returns {[string, string]} */
export function endOf(events) {
  const last = events.findLast((event) => event.state in ENDS);
  if (!last) return ["finished", ""]; // Its events are past retention.
  return [last.to_queue ? "dead-lettered" : ENDS[last.state], TONES[last.state] || ""];
}
