/** The keyboard: every page is one or two keys away. */

import { h } from "./dom.js";
import { isOffered } from "./identity.js";
import { PAGES } from "./pages.js";
import { openPalette } from "./palette.js";
import { button, openDialog } from "./parts.js";
import { navigate } from "./route.js";

const PATIENCE_MS = 1200; // Between `g` and the key of a page.

/** @param {EventTarget|null} target */
const isTyping = (target) => target instanceof Element && target.matches("input, textarea, select, [contenteditable]");

export function listenToKeys() {
  let gone = 0;
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    if (
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      isTyping(event.target) ||
      document.querySelector("dialog[open]")
    )
      return;
    if (Date.now() - gone < PATIENCE_MS) {
      gone = 0;
      const page = PAGES.find((each) => each.key === event.key);
      if (page) navigate(`/${page.name}`);
    } else if (event.key === "g") {
      gone = Date.now();
    } else if (event.key === "/") {
      event.preventDefault();
      focusFilter();
    } else if (event.key === "?") {
      showKeys();
    }
  });
}

function focusFilter() {
  const filter = document.getElementById("filter");
  if (filter) filter.focus();
  else openPalette();
}

function showKeys() {
  const rows = [
    ["Ctrl K", "find a queue, a message or a page"],
    ["/", "filter what is shown"],
    ["?", "these keys"],
    ...PAGES.filter((page) => page.key && isOffered(page)).map((page) => [`g ${page.key}`, page.label]),
  ];
  const list = rows.map(([keys, what]) => [
    h(
      "dt",
      {},
      keys.split(" ").map((key) => h("kbd", {}, key)),
    ),
    h("dd", {}, what),
  ]);
  const dialog = openDialog(
    h(
      "div",
      {},
      h("h2", { id: "asked" }, "Keys"),
      h("dl", { class: "keys" }, list),
      h(
        "div",
        { class: "actions" },
        button("Close", () => dialog.close()),
      ),
    ),
  );
}
