/** What pages are made of: headings, tables, buttons, notes, dialogs and lines to copy. */

import { facts } from "./api.js";
import { h, show } from "./dom.js";
import { time } from "./format.js";
import { meaningOf } from "./words.js";

/**
 * The heading of a page, with what can be done on it.
 * @param {string} title
 * @param {...any} actions
 */
export function heading(title, ...actions) {
  document.title = `${title} · Penstock`;
  return h("div", { class: "heading" }, h("h1", {}, title), h("div", { class: "actions" }, actions));
}

/**
 * @param {string} label
 * @param {(event: Event) => any} act
 * @param {Record<string, any>} [attributes]
 */
export function button(label, act, attributes = {}) {
  return h("button", { type: "button", onclick: act, ...attributes }, label);
}

/** A button that changes something; left out where the console only reads. */
export function action(
  /** @type {string} */ label,
  /** @type {(event: Event) => any} */ act,
  /** @type {Record<string, any>} */ attributes = {},
) {
  return facts.readOnly ? null : button(label, act, attributes);
}

/**
 * `minor`: left out on phones. `spare`: left out wherever it is not wide. `grow`: it takes the width that is left.
 * `acts`: buttons, in sight
 * however far the table is scrolled. `tick`: boxes to choose rows. `head`: in place of the label.
 * @typedef {{label: string, cell: (row: any) => any, head?: () => any, number?: boolean, sort?: string, minor?:
 * boolean, spare?: boolean,
 *   grow?: boolean, acts?: boolean, tick?: boolean}} Column
 */

/**
 * A table in a box that scrolls sideways; on a phone, a card for each row.
 * @param {string} caption
 * @param {Column[]} columns
 * @param {any[]} rows
 * @param {{empty?: any}} [options]
 */
export function table(caption, columns, rows, { empty = "There are none." } = {}) {
  if (!rows.length) return h("div", { class: "empty" }, empty);
  return frame(
    caption,
    h("tr", { role: "row" }, columns.map(headCell)),
    rows.map((row) => tableRow(columns, row)),
    "cards",
  );
}

/** @param {Column} column */
const headCell = (column) =>
  h(
    "th",
    { ...classOf(column), role: "columnheader", title: meaningOf(column.label) },
    column.head ? column.head() : column.label,
  );

/** Roles are named, because a card is no table to a browser. @param {Column[]} columns @param {any} row */
export const tableRow = (columns, row) =>
  h(
    "tr",
    { role: "row" },
    columns.map((column) =>
      h("td", { ...classOf(column), role: "cell", "data-label": column.label }, h("span", {}, column.cell(row))),
    ),
  );

const KINDS = /** @type {const} */ (["number", "minor", "spare", "grow", "acts", "tick"]);

/** @param {Column} column */
export const classOf = (column) => ({ class: KINDS.filter((kind) => column[kind]).join(" ") || null });

/** @param {string} caption @param {Element} head @param {any} body @param {string} [kind] */
export function frame(caption, head, body, kind = "") {
  const rows = body instanceof Node ? body : h("tbody", { role: "rowgroup" }, body);
  const whole = h(
    "table",
    { class: kind || null, role: "table" },
    h("caption", {}, caption),
    h("thead", { role: "rowgroup" }, head),
    rows,
  );
  return h("div", { class: "table", tabindex: 0, role: "region", "aria-label": caption }, whole);
}

/**
 * Show for some seconds what was done, or why not.
 * @param {any} text
 * @param {"done"|"failed"} [kind]
 */
export function note(text, kind = "done") {
  const shown = h("div", { class: `note ${kind}` }, text instanceof Error ? text.message : text);
  document.getElementById("notes")?.append(shown);
  setTimeout(() => shown.remove(), kind === "failed" ? 10_000 : 4_000);
}

/**
 * Do something, and note why it failed. Returns whether it was done.
 * @param {() => Promise<any>} work
 * @param {string | ((value: any) => string)} [done]
 */
export async function attempt(work, done) {
  try {
    const value = await work();
    if (done) note(typeof done === "function" ? done(value) : done);
    return true;
  } catch (error) {
    note(error, "failed");
    return false;
  }
}

/**
 * Load something into a place; until it is there, the place shows a skeleton.
 * @param {() => Promise<any>} load
 * @param {(value: any) => any} draw
 */
export function loaded(load, draw) {
  const place = h("div", { class: "skeleton", "aria-busy": "true" });
  const done = (/** @type {any} */ content) => {
    place.className = "loaded";
    place.removeAttribute("aria-busy");
    show(place, content);
  };
  load().then(
    (value) => done(draw(value)),
    (error) => done(h("p", { class: "problem", role: "alert" }, error.message)),
  );
  return place;
}

/**
 * Ask before something is done. `typed`: what must be typed first, because it cannot be undone. `check`: whether the
 * fields are right; it points to one that is not. `work`: done while the dialog is open; if it fails, the dialog says
 * why and stays.
 * `code`: the same from a program, as the fields are.
 * @param {{title: string, text?: any, act: string, typed?: string, danger?: boolean, fields?: any, back?: string,
 * check?: () => boolean,
 *   work?: () => Promise<any>, code?: () => Code}} options
 * @returns {Promise<boolean>}
 */
export function ask({
  title,
  text,
  act,
  typed,
  danger = false,
  fields,
  back = "Cancel",
  check = () => true,
  work = async () => {},
  code,
}) {
  return new Promise((answer) => {
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: Boolean(typed) }, act);
    const compare = (/** @type {any} */ event) => put(go, event.target.value !== typed);
    const guard =
      typed &&
      h(
        "label",
        {},
        `Type ${typed} to go on`,
        h("input", { oninput: compare, autocomplete: "off", spellcheck: "false" }),
      );
    const cancel = button(back, () => dialog.close());
    const refusal = h("p", { class: "refusal bad", role: "alert" });
    let agreed = false;
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (!check()) return;
      put(go, true);
      try {
        await work();
        agreed = true;
        dialog.close();
      } catch (error) {
        show(refusal, /** @type {Error} */ (error).message);
        put(go, false);
      }
    };
    // Fields with a message of their own must not keep the form from being checked again.
    const form = h(
      "form",
      { onsubmit: submit, oninput: forgive },
      h("h2", { id: "asked" }, title),
      text && h("div", {}, text),
      fields,
      guard,
      code && asProgram(code),
      h("div", { class: "actions" }, refusal, cancel, go),
    );
    const dialog = openDialog(form, () => answer(agreed));
  });
}

/** What the dialog does, as commands to copy; made when they are looked at. @param {() => Code} code */
function asProgram(code) {
  const place = h("div", { class: "stack" });
  const look = (/** @type {any} */ event) => event.target.open && show(place, codeView(code()));
  return h("details", { ontoggle: look }, h("summary", {}, "Copy as …"), place);
}

/** @param {any} event */
function forgive(event) {
  for (const input of event.currentTarget.querySelectorAll("input, textarea")) input.setCustomValidity("");
}

/** @param {HTMLElement} element @param {boolean} disabled */
const put = (element, disabled) => element.toggleAttribute("disabled", disabled);

/**
 * @param {Element} content
 * @param {() => void} [closed]
 */
export function openDialog(content, closed) {
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-labelledby": "asked" }, content));
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** What is asked belongs to the page that asked. Who leaves the page does not answer any more. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.remove();
}

/**
 * A line to copy.
 * @param {string} label
 * @param {string} text
 */
export function copyable(label, text) {
  const copy = () => attempt(() => navigator.clipboard.writeText(text), `${label} copied`);
  return h(
    "div",
    { class: "code" },
    h("div", { class: "bar" }, h("span", {}, label), button("Copy", copy)),
    h("pre", { tabindex: 0 }, text),
  );
}

/** @typedef {{cli?: string, curl: string, python: string}} Code the same in a shell and in a program */

/** @param {Code} code */
const codeView = ({ cli, curl, python }) => [
  cli && copyable("Command line", cli),
  copyable("curl", curl),
  copyable("Python", python),
];

/**
 * A button that opens the same request for a shell and in Python.
 * @param {() => Code} make
 */
export function asCode(make) {
  return button("Copy as …", () => {
    const close = button("Close", () => dialog.close());
    const title = h("h2", { id: "asked" }, "The same, from a program");
    const dialog = openDialog(h("div", {}, title, codeView(make()), h("div", { class: "actions" }, close)));
  });
}

/** A moment in the zone of the reader, with its UTC as a tooltip. @param {string|number|null|undefined} value */
export function moment(value) {
  if (!value) return "–";
  const utc = new Date(typeof value === "number" ? value * 1000 : value).toISOString();
  return h("time", { datetime: utc, title: `${utc.slice(0, 19).replace("T", " ")} UTC` }, time(value));
}

/** The state of a message or a circuit as a small label. @param {string} word @param {string} [tone] */
export const badge = (word, tone = "") => h("span", { class: `badge ${tone}` }, word);

/** @param {string} name */
export const queueLink = (name) =>
  h("a", { class: "queue", href: `#/queues/${encodeURIComponent(name)}`, title: name }, name);

/** @param {string} id */
export const messageLink = (id) => h("a", { class: "id", href: `#/messages/${id}` }, id);

/**
 * A labelled input of a form.
 * @param {string} label
 * @param {Record<string, any>} attributes
 * @param {string} [hint]
 */
export function field(label, attributes, hint) {
  return h(
    "label",
    {},
    label,
    h(attributes.rows ? "textarea" : "input", { autocomplete: "off", spellcheck: "false", ...attributes }),
    hint && h("small", {}, hint),
  );
}

/**
 * @param {string} label
 * @param {Record<string, any>} attributes
 * @param {string[]} choices
 * @param {string} [hint]
 */
export function choice(label, attributes, choices, hint) {
  const { value = choices[0], ...others } = attributes;
  return h(
    "label",
    {},
    label,
    h(
      "select",
      others,
      choices.map((each) => h("option", { value: each, selected: each === value }, each || "any")),
    ),
    hint && h("small", {}, hint),
  );
}

/**
 * A box to tick.
 * @param {string} label
 * @param {Record<string, any>} attributes
 * @param {string} [hint]
 */
export function tick(label, attributes, hint) {
  return h(
    "label",
    { class: "check" },
    h("input", { ...attributes, type: "checkbox" }),
    h("span", {}, label, hint && h("small", {}, hint)),
  );
}

/** The values of a form by name, without the empty ones. @param {HTMLFormElement} form */
export const valuesOf = (form) => Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
