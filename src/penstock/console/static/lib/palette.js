/** The palette: type part of a name, or an id, and go there. */

import { h, show } from "./dom.js";
import { figures } from "./live.js";
import { PAGES } from "./pages.js";
import { openDialog } from "./parts.js";
import { hashOf } from "./route.js";

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const SHOWN_MAX = 8;

/** @typedef {{label: string, kind: string, hash: string}} Place */

export function openPalette() {
  if (document.querySelector("dialog[open]")) return;
  const list = h("ul", { role: "listbox", id: "places" });
  /** @type {Place[]} */
  let places = [];
  let chosen = 0;
  let asked = 0;

  const draw = () => {
    show(list, places.map((place, at) =>
      h("li", { role: "option", id: `place-${at}`, "aria-selected": String(at === chosen), onclick: () => go(place) }, h("span", {}, place.label), h("small", {}, place.kind))));
    input.setAttribute("aria-activedescendant", places.length ? `place-${chosen}` : "");
  };
  const look = async () => {
    const text = /** @type {HTMLInputElement} */ (input).value.trim();
    const own = (asked += 1);
    places = known(text);
    chosen = 0;
    draw();
    const queues = await figures({ name: text, limit: SHOWN_MAX }).then((found) => found.queues, () => []);
    if (own !== asked) return;
    places = [...known(text), ...queues.map((/** @type {any} */ queue) => ({ label: queue.name, kind: "queue", hash: hashOf(`/queues/${encodeURIComponent(queue.name)}`) }))];
    draw();
  };
  const go = (/** @type {Place} */ place) => {
    dialog.close();
    location.hash = place.hash;
  };
  const onkeydown = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      chosen = (chosen + step + places.length) % Math.max(1, places.length);
      draw();
    } else if (event.key === "Enter" && places[chosen]) {
      event.preventDefault();
      go(places[chosen]);
    }
  };
  const input = h("input", {
    type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "places", "aria-label": "Find a queue, a message or a page",
    placeholder: "Queue, message id or page", autocomplete: "off", spellcheck: "false", oninput: look, onkeydown,
  });
  const dialog = openDialog(h("div", { class: "palette" }, h("h2", { id: "asked", class: "hidden" }, "Find or go to"), input, list));
  look();
}

/** Places that need no question to the broker. @param {string} text @returns {Place[]} */
function known(text) {
  if (ID.test(text)) return [{ label: text, kind: "message", hash: hashOf(`/messages/${text}`) }];
  const pages = PAGES.filter((page) => page.label && !page.under && page.label.toLowerCase().includes(text.toLowerCase()));
  const found = pages.map((page) => ({ label: page.label, kind: "page", hash: hashOf(`/${page.name}`) }));
  const search = { label: `Search messages for “${text}”`, kind: "action", hash: hashOf("/search", { text }) };
  return text ? [...found, search] : found;
}
