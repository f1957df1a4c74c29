/** The body of a message: as a tree, as text, as a picture, or byte by byte. It is never read as markup. */

import { dictionary } from "./dictionary.js";
import { h, show } from "./dom.js";
import { count, bytes as sizeOf } from "./format.js";

const PICTURES = dictionary({
  "image/png": [0x89, 0x50, 0x4e, 0x47],
  "image/jpeg": [0xff, 0xd8, 0xff],
  "image/gif": [0x47, 0x49, 0x46, 0x38],
});
const HEX_BYTES_MAX = 4096;
const PREVIEW_LETTERS = 400;
const PREVIEWS = 5;

/**
 * @typedef {{message?: any, message_base64?: string, mimeType?: string}} Body
 * @param {Body} body
 */
export function textOf(body) {
  if (body.message_base64 !== undefined) return null;
  return typeof body.message === "string" ? body.message : JSON.stringify(body.message, null, 2);
}

/** @param {Body} body */
function bytesOf(body) {
  if (body.message_base64 === undefined) return new TextEncoder().encode(textOf(body) || "");
  return Uint8Array.from(atob(body.message_base64), (each) => each.charCodeAt(0));
}

/**
 * What somebody has typed: JSON where it is JSON, unless another type was asked for.
 * @param {string} text
 * @param {string|undefined} type
 */
export function bodyFrom(text, type) {
  if (type && !type.includes("json")) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * What is wrong with a body that begins like JSON, or was said to be; empty if nothing is.
 * @param {any} text
 * @param {string|undefined} type
 */
export function wrongJson(text, type) {
  if (typeof text !== "string" || (type ? !type.includes("json") : !/^\s*[[{]/.test(text))) return "";
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}

/** The body in one line, for a table. @param {Body} body */
export function preview(body) {
  if (body.message_base64 !== undefined) return `${body.mimeType || "bytes"}, ${sizeOf(bytesOf(body).length)}`;
  const text = typeof body.message === "string" ? body.message : JSON.stringify(body.message);
  return text === undefined ? "–" : text.slice(0, PREVIEW_LETTERS);
}

/**
 * The first of some messages, so that nobody acts on them unseen.
 * @param {any[]} rows
 * @param {number} total
 */
export function previews(rows, total) {
  const shown = rows.slice(0, PREVIEWS).map((row) => h("li", { class: "mono" }, preview(row)));
  const more = total - shown.length;
  return h("ul", { class: "previews" }, shown, more > 0 && h("li", { class: "quiet" }, `and ${count(more)} more`));
}

/** @param {Body} body */
export function bodyView(body) {
  const data = bytesOf(body);
  /** @type {Record<string, () => any>} */
  const views = {};
  const picture = pictureType(body, data);
  if (picture) views.Picture = () => pictureView(data, picture);
  if (body.message !== null && typeof body.message === "object")
    views.Tree = () => h("div", { class: "tree" }, tree(body.message));
  if (body.message !== undefined) views.Text = () => h("pre", { tabindex: 0 }, textOf(body));
  views.Hex = () => h("pre", { tabindex: 0 }, hex(data));
  const place = h("div", { role: "tabpanel" });
  const names = Object.keys(views);
  const tabs = names.map((name) => h("button", { type: "button", role: "tab", onclick: () => choose(name) }, name));
  const choose = (/** @type {string} */ name) => {
    tabs.forEach((tab, at) => tab.setAttribute("aria-selected", String(names[at] === name)));
    show(place, views[name]());
  };
  choose(names[0]);
  const facts = h("span", { class: "quiet" }, `${body.mimeType || "no content type"} · ${sizeOf(data.length)}`);
  return h(
    "div",
    { class: "code body" },
    h(
      "div",
      { class: "bar" },
      h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the body" }, tabs),
      facts,
    ),
    place,
  );
}

/** The type of a picture whose first bytes agree with it. @param {Body} body @param {Uint8Array} data */
function pictureType(body, data) {
  const type = (body.mimeType || "").split(";")[0].trim();
  const magic = PICTURES[type];
  return magic?.every((byte, at) => data[at] === byte) ? type : null;
}

/** @param {Uint8Array} data @param {string} type */
function pictureView(data, type) {
  const address = URL.createObjectURL(new Blob([/** @type {any} */ (data)], { type }));
  return h("img", {
    src: address,
    onload: () => URL.revokeObjectURL(address),
    alt: "The body of the message as a picture",
  });
}

/** @param {any} value @param {string} [name] @returns {Element} */
function tree(value, name) {
  const member = name === undefined ? null : h("span", { class: "member" }, `${name}: `);
  if (value === null || typeof value !== "object") return h("div", { class: "leaf" }, member, JSON.stringify(value));
  const entries = Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  return h(
    "details",
    { open: entries.length <= 50 },
    h("summary", {}, member, h("span", { class: "quiet" }, size)),
    entries.map(([key, each]) => tree(each, key)),
  );
}

/** @param {Uint8Array} data */
function hex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_BYTES_MAX); at += 16) {
    const row = [...data.slice(at, at + 16)];
    const codes = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(47)}  ${letters}`);
  }
  if (data.length > HEX_BYTES_MAX) lines.push(`… ${count(data.length - HEX_BYTES_MAX)} more bytes`);
  return lines.join("\n");
}
