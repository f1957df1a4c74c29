/** The frame: navigation, the page that the address names, the token, and the keys. */

import { ApiError, facts, hasToken, refusal, setToken, wantsToken } from "./lib/api.js";
import { dictionary } from "./lib/dictionary.js";
import { h, show } from "./lib/dom.js";
import { time, zone } from "./lib/format.js";
import { identity, isOffered, learnIdentity, nameOf } from "./lib/identity.js";
import { listenToKeys } from "./lib/keys.js";
import { connection, heard, isLate } from "./lib/live.js";
import { openPalette } from "./lib/palette.js";
import { PAGES } from "./lib/pages.js";
import { ask, button, closeDialogs, field, heading } from "./lib/parts.js";
import { effect, scoped, signal } from "./lib/reactive.js";
import { route } from "./lib/route.js";
import { meaningOf } from "./lib/words.js";

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const AGAIN_SECONDS = 3; // Until the broker is asked again for a page that it did not answer.
const THEMES = ["auto", "light", "dark"];
const THEME = "penstock.theme";
const KINDS = dictionary({
  settings: "a token of the settings",
  token: "a token",
  jwt: "a JWT",
  certificate: "a certificate",
});

let dispose = () => {};
let turn = 0;
let wasAway = false;
const current = signal("?"); // The page that is marked in the list of pages.

let shown = ""; // The page that is on the screen, or on its way.

/** Show the page that the address names. */
async function open() {
  const { path, query } = route();
  const own = (turn += 1);
  closeDialogs();
  showMenu(false);
  wantsToken.set(false);
  const named = PAGES.find((each) => each.name === (path[0] || "")) || {
    name: "?",
    file: "?",
    label: "There is no such page",
  };
  const page = named.name === "queues" && path[1] ? { ...named, file: "queue" } : named;
  current.set(page.under || page.name);
  dispose();
  document.title = `${page.label} · Penstock`;
  main.setAttribute("aria-busy", "true");
  dispose = () => {};
  const wanted = [page.file, ...path].join("/");
  // The same page with another filter stays until it is there.
  if (wanted !== shown) show(main, waitingPage(page.label));
  shown = wanted;
  try {
    if (page.file === "?")
      throw new ApiError(
        404,
        `The console has no page “${path.join("/")}”. Its pages are on the left, or behind Ctrl K.`,
      );
    const module = await fileOf(page.file);
    const asked = { path: path.slice(1), query };
    const data = await module.load?.(asked);
    if (own === turn) draw(module, asked, data);
  } catch (error) {
    if (own !== turn) return;
    show(main, failure(/** @type {any} */ (error)));
    shown = "";
    if (/** @type {any} */ (error).status === 0) setTimeout(() => own === turn && open(), AGAIN_SECONDS * 1000);
  }
  if (own === turn) main.removeAttribute("aria-busy");
}

/**
 * The file of a page. A browser that cannot load it only says that something failed, and does not try again until the
 * whole page is loaded anew.
 * @param {string} name
 */
async function fileOf(name) {
  try {
    return await import(`/console/pages/${name}.js`);
  } catch (error) {
    const isThere = await fetch("/health").catch(() => null);
    if (isThere && !wasAway) throw error;
    wasAway = true;
    if (isThere) location.reload();
    throw new ApiError(0, "The broker does not answer. Is it running?");
  }
}

/** @param {any} module @param {any} asked @param {any} data */
function draw(module, asked, data) {
  const drawn = scoped(() => h("div", { class: "page" }, module.page(asked, data)));
  dispose = drawn.dispose;
  show(main, drawn.value);
}

/** What is shown while the broker looks. @param {string} label */
const waitingPage = (label) => [
  heading(label),
  h("p", { class: "hidden", role: "status" }, "Loading"),
  h("div", { class: "skeleton" }),
  h("div", { class: "skeleton tall" }),
];

/** @param {Error & {status?: number}} error */
function failure(error) {
  const wrong = error.status === undefined;
  if (wrong) console.error(error);
  const title =
    { 0: "No answer", 403: "Your token does not allow this", 404: "Not found" }[error.status ?? -1] ||
    (wrong ? "This page failed" : "The broker refused");
  const later = error.status === 0 && h("p", { class: "quiet" }, `It is asked again every ${AGAIN_SECONDS} seconds.`);
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("h1", {}, title),
    h("p", {}, error.message),
    later,
    button("Try again", open),
  );
}

async function askForToken() {
  const refused = hasToken();
  const text = refused
    ? h("p", { class: "bad", role: "alert" }, `The token of this tab was refused: ${refusal()}. Paste another one.`)
    : "Paste a bearer token.";
  const input = field(
    "Token",
    { type: "password", autocomplete: "current-password", autofocus: true },
    "It is kept in this tab until you close it.",
  );
  if (
    await ask({
      title: refused ? "This token does not work" : "This broker needs a token",
      text,
      fields: input,
      act: "Use it",
    })
  ) {
    setToken(/** @type {HTMLInputElement} */ (input.querySelector("input")).value.trim());
    learnIdentity();
    open();
  } else {
    wantsToken.set(false);
  }
}

/** Who am I, and with what rights? */
async function showIdentity() {
  await learnIdentity();
  const who = identity();
  if (!who) return askForToken();
  const isAnybody = who.kind === "anonymous";
  const text = isAnybody
    ? "This broker asks nobody for a token: everybody who reaches it may do everything."
    : [h("p", {}, `${nameOf(who)}, by ${KINDS[who.kind]}. It allows:`), scopesOf(who)];
  const act = hasToken() ? "Forget this token" : "Use a token";
  if (!(await ask({ title: "Who am I?", text, act, back: "Close" }))) return undefined;
  if (!hasToken()) return askForToken();
  setToken("");
  learnIdentity();
  return open();
}

/** @param {import("./lib/identity.js").Identity} who */
const scopesOf = (who) =>
  h(
    "ul",
    { class: "previews" },
    who.scopes.map((each) => h("li", { class: "mono" }, each)),
  );

/** The pages, on narrow screens behind a button. @param {boolean} isOpen */
function showMenu(isOpen) {
  document.body.classList.toggle("menu", isOpen);
  document.getElementById("menu")?.setAttribute("aria-expanded", String(isOpen));
}

/** Light, dark, or as the system wants it; kept in this browser. @param {string} theme */
function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  if (theme === "auto") localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, theme);
}

function themeChoice() {
  const kept = localStorage.getItem(THEME) || "auto";
  const onchange = (/** @type {any} */ event) => useTheme(event.target.value);
  return h(
    "label",
    {},
    "Theme",
    h(
      "select",
      { onchange },
      THEMES.map((each) => h("option", { value: each, selected: each === kept }, each)),
    ),
  );
}

function drawFrame() {
  const nav = /** @type {HTMLElement} */ (document.getElementById("nav"));
  const top = /** @type {HTMLElement} */ (document.getElementById("top"));
  const link = (/** @type {any} */ page) => {
    const mark = () => (current() === page.name ? "page" : null);
    return h(
      "li",
      {},
      h("a", { href: `#/${page.name}`, "aria-current": mark, title: meaningOf(page.label) }, page.label),
    );
  };
  const list = () => {
    const groups = Object.groupBy(
      PAGES.filter((page) => page.group && isOffered(page)),
      (page) => page.group || "",
    );
    return Object.entries(groups).map(([name, pages]) => [h("h2", {}, name), h("ul", {}, pages?.map(link))]);
  };
  const about = h(
    "div",
    { class: "stack aside" },
    themeChoice(),
    h(
      "p",
      { class: "quiet" },
      `Version ${facts.version}`,
      h("br"),
      `Times in ${zone()}`,
      facts.readOnly && h("br"),
      facts.readOnly && "Read only",
    ),
  );
  show(nav, h("div", {}, list), about);
  const menu = button("☰", () => showMenu(!document.body.classList.contains("menu")), {
    id: "menu",
    "aria-label": "Pages",
    "aria-expanded": "false",
    "aria-controls": "nav",
  });
  top.prepend(menu);
  top.append(
    h("span", { class: "connection good", title: "The stream of figures" }, () =>
      connection() === "live" ? "Live" : "",
    ),
    button("Find or go to …", openPalette, { class: "finder", "aria-keyshortcuts": "Control+K" }),
    button(/** @type {any} */ (() => nameOf(identity())), showIdentity, { class: "plain who", title: "Who am I?" }),
  );
  top.after(
    h(
      "div",
      { class: "banner", role: "alert" },
      () => isLate() && [connection(), heard() ? ` What is shown is as of ${time(heard())}.` : ""],
    ),
  );
  effect(() => document.body.classList.toggle("late", isLate()));
  addEventListener("keydown", (event) => event.key === "Escape" && showMenu(false));
  main.addEventListener("click", () => showMenu(false));
}

learnIdentity();
useTheme(localStorage.getItem(THEME) || "auto");
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
