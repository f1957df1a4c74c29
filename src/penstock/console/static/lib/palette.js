/** The palette: type part of a name, or an id, and go there. */

import { h, show } from "./dom.js";
import { isOffered } from "./identity.js";
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
  let looked = Promise.resolve();

  const draw = () => {
    show(
      list,
      places.map((place, at) =>
        h(
          "li",
          { role: "option", id: `place-${at}`, "aria-selected": String(at === chosen), onclick: () => go(place) },
          h("span", {}, place.label),
          h("small", {}, place.kind),
        ),
      ),
    );
    input.setAttribute("aria-activedescendant", places.length ? `place-${chosen}` : "");
  };
  const look = async () => {
    const text = /** @type {HTMLInputElement} */ (input).value.trim();
    const own = (asked += 1);
    places = placesFor(text, []);
    chosen = 0;
    draw();
    const queues = await figures({ name: text, limit: SHOWN_MAX }).then(
      (found) => found.queues,
      () => [],
    );
    if (own !== asked) return;
    const before = places[chosen];
    places = placesFor(
      text,
      queues.map((/** @type {any} */ queue) => queue.name),
    );
    chosen = chosen
      ? Math.max(
          0,
          places.findIndex((place) => place.hash === before.hash),
        )
      : 0; // Unless somebody has chosen one, the first.
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
    } else if (event.key === "Enter") {
      event.preventDefault();
      // What was typed may be a queue that is still looked for.
      looked.then(() => places[chosen] && go(places[chosen]));
    }
  };
  const oninput = () => {
    looked = look();
  };
  const input = h("input", {
    type: "text",
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "places",
    "aria-label": "Find a queue, a message or a page",
    placeholder: "Queue, message id or page",
    autocomplete: "off",
    spellcheck: "false",
    oninput,
    onkeydown,
  });
  const dialog = openDialog(
    h("div", { class: "palette" }, h("h2", { id: "asked", class: "hidden" }, "Find or go to"), input, list),
  );
  oninput();
}

/**
 * Where a text may lead to, what is most like it first; a search comes last, because it always would.
 * @param {string} text
 * @param {string[]} queues
 */
function placesFor(text, queues) {
  if (ID.test(text)) return [{ label: text, kind: "message", hash: hashOf(`/messages/${text}`) }];
  const wanted = text.toLowerCase();
  const pages = PAGES.filter((page) => !page.under && isOffered(page) && page.label.toLowerCase().includes(wanted));
  const found = [
    ...queues.map((name) => ({ label: name, kind: "queue", hash: hashOf(`/queues/${encodeURIComponent(name)}`) })),
    ...pages.map((page) => ({ label: page.label, kind: "page", hash: hashOf(`/${page.name}`) })),
  ];
  const search = { label: `Search messages for “${text}”`, kind: "action", hash: hashOf("/search", { text }) };
  if (!text) return found.sort((one, other) => Number(one.kind === "queue") - Number(other.kind === "queue"));
  const likeness = (/** @type {Place} */ { label }) =>
    label.toLowerCase() === wanted ? 0 : label.toLowerCase().startsWith(wanted) ? 1 : 2;
  return [...found.sort((one, other) => likeness(one) - likeness(other)), search];
}
