/** The frame: navigation, the page that the address names, the token, and the keys. */

import { facts, hasToken, setToken, wantsToken } from "./lib/api.js";
import { h, show } from "./lib/dom.js";
import { zone } from "./lib/format.js";
import { listenToKeys } from "./lib/keys.js";
import { connection } from "./lib/live.js";
import { openPalette } from "./lib/palette.js";
import { PAGES } from "./lib/pages.js";
import { ask, button, field, heading } from "./lib/parts.js";
import { effect, scoped } from "./lib/reactive.js";
import { route } from "./lib/route.js";
import { meaningOf } from "./lib/words.js";

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
let dispose = () => {};
let turn = 0;

let shown = ""; // The page that is on the screen, or on its way.

/** Show the page that the address names. */
async function open() {
  const { path, query } = route();
  const own = (turn += 1);
  const named = PAGES.find((each) => each.name === (path[0] || "")) || PAGES[0];
  const page = named.name === "queues" && path[1] ? { ...named, file: "queue" } : named;
  markCurrent(page.under || page.name);
  dispose();
  document.title = `${page.label} · Penstock`;
  main.setAttribute("aria-busy", "true");
  dispose = () => {};
  const wanted = [page.file, ...path].join("/");
  if (wanted !== shown) show(main, waitingPage(page.label)); // The same page with another filter stays until it is there.
  shown = wanted;
  try {
    const module = await import(`/console/pages/${page.file}.js`);
    const asked = { path: path.slice(1), query };
    const data = await module.load?.(asked);
    if (own === turn) draw(module, asked, data);
  } catch (error) {
    if (own === turn) show(main, failure(/** @type {any} */ (error)));
  }
  if (own === turn) main.removeAttribute("aria-busy");
}

/** @param {any} module @param {any} asked @param {any} data */
function draw(module, asked, data) {
  const drawn = scoped(() => h("div", { class: "page" }, module.page(asked, data)));
  dispose = drawn.dispose;
  show(main, drawn.value);
}

/** What is shown while the broker looks. @param {string} label */
const waitingPage = (label) => [heading(label), h("p", { class: "hidden", role: "status" }, "Loading"), h("div", { class: "skeleton" }), h("div", { class: "skeleton tall" })];

/** @param {Error & {status?: number}} error */
function failure(error) {
  const wrong = error.status === undefined;
  if (wrong) console.error(error);
  return h("div", { class: "problem", role: "alert" }, h("h1", {}, wrong ? "This page failed" : "The broker refused"), h("p", {}, error.message), button("Try again", open));
}

/** @param {string} name */
function markCurrent(name) {
  for (const link of document.querySelectorAll("#nav a")) {
    const current = link.getAttribute("data-page") === name;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (current) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

async function askForToken() {
  const input = field("Token", { type: "password", autocomplete: "current-password", autofocus: true }, "It is kept in this tab until you close it.");
  if (await ask({ title: "This broker needs a token", text: "Paste a bearer token.", fields: input, act: "Use it" })) {
    setToken(/** @type {HTMLInputElement} */ (input.querySelector("input")).value.trim());
    open();
  } else {
    wantsToken.set(false);
  }
}

async function changeToken() {
  if (hasToken() && (await ask({ title: "Forget the token of this tab?", act: "Forget it" }))) {
    setToken("");
    open();
  } else if (!hasToken()) {
    askForToken();
  }
}

function drawFrame() {
  const links = PAGES.filter((page) => page.label && !page.under).map((page) =>
    h("li", {}, h("a", { href: `#/${page.name}`, "data-page": page.name, title: meaningOf(page.label) }, page.label)));
  show(/** @type {HTMLElement} */ (document.getElementById("nav")), h("ul", {}, links), h("p", { class: "quiet" }, `Version ${facts.version}`, h("br"), `Times in ${zone()}`, facts.readOnly && h("br"), facts.readOnly && "Read only"));
  const state = () => (connection() === "live" ? "Live" : connection() === "waiting" ? "" : connection());
  document.getElementById("top")?.append(
    h("span", { class: () => `connection ${connection() === "live" ? "good" : "soon"}`, title: "The stream of figures" }, state),
    button("Find or go to …", openPalette, { class: "finder", "aria-keyshortcuts": "Control+K" }),
    button("Token", changeToken, { class: "plain" }),
  );
}

drawFrame();
listenToKeys();
addEventListener("hashchange", () => {
  open().then(() => main.focus({ preventScroll: true }));
  scrollTo(0, 0);
});
effect(() => {
  if (wantsToken()) queueMicrotask(askForToken);
});
open();
