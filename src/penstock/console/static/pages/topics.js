/** Topics: which patterns lead to which channels, and how their push endpoints are doing. */

import { api } from "../lib/api.js";
import { curl } from "../lib/code.js";
import { dictionary } from "../lib/dictionary.js";
import { h } from "../lib/dom.js";
import { age, count, seconds, time } from "../lib/format.js";
import { badge, copyable, heading, queueLink } from "../lib/parts.js";

const TONES = dictionary({ closed: "good", "half-open": "soon", open: "bad" });

export const load = () => api("/v1/channels?limit=1000");

/** @param {any} _ @param {any} data */
export function page(_, { channels, total }) {
  const flows = channels.map((/** @type {any} */ channel) =>
    h(
      "li",
      { class: "flow panel" },
      h(
        "span",
        { class: "patterns" },
        channel.topics.map((/** @type {string} */ pattern) => badge(pattern, "accent")),
      ),
      h("span", { class: "arrow", "aria-hidden": "true" }, "→"),
      h(
        "span",
        { class: "target" },
        queueLink(channel.name),
        h("small", {}, ` ${count(channel.status.ready)} ready`),
        channel.confirm ? null : badge("fire and forget"),
      ),
      h("span", { class: "arrow", "aria-hidden": "true" }, "→"),
      channel.push ? endpoint(channel.push) : h("span", { class: "quiet" }, "consumers fetch"),
    ),
  );
  return [
    heading("Topics"),
    h(
      "p",
      { class: "quiet" },
      "A message goes to the queue that the root of its topic names, and to each channel with a pattern that matches.",
    ),
    channels.length
      ? h("ul", { class: "flows" }, flows)
      : h(
          "div",
          { class: "empty" },
          h("p", {}, "There are no channels. Subscribe to topics:"),
          copyable("curl", curl("PUT", "/v1/channels/mail", { topics: ["fruit.*"] })),
        ),
    total > channels.length ? h("p", { class: "quiet" }, `The first ${channels.length} of ${total} channels.`) : null,
  ];
}

/** @param {any} push */
function endpoint(push) {
  const circuit = push.circuit || "closed";
  const words = dictionary({ closed: "works", "half-open": "is tried", open: "fails" });
  return h(
    "span",
    { class: "target" },
    h("span", { class: "mono" }, push.url),
    " ",
    badge(words[circuit], TONES[circuit]),
    h("small", {}, ` ${push.in_flight ?? 0} of ${push.max_in_flight} in flight`),
    push.last_error && (push.failing_since || circuit !== "closed")
      ? h(
          "div",
          { class: "bad" },
          push.last_error,
          push.failing_since ? `, since ${time(push.failing_since)} (${age(seconds(push.failing_since))})` : "",
        )
      : null,
  );
}
