/** The settings of a queue: a form from the broker's own description, and what a change means in words. */

import { api } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { ask, attempt, field, note } from "../lib/parts.js";
import { navigate } from "../lib/route.js";

/** @type {Promise<any>|undefined} */
let described;

/** Every setting with its description and default, as OpenAPI has them. */
export function settingsSchema() {
  described ??= api("/openapi.json").then((document) => document.components.schemas.NativeQueueSettings.properties);
  return described;
}

/**
 * Inputs for the settings; each holds JSON, so that a list or an object can be written too.
 * @param {Record<string, any>} schema
 * @param {Record<string, any>} values
 */
export function settingInputs(schema, values) {
  return h("div", { class: "settings" }, Object.entries(schema).map(([name, about]) =>
    field(name, { name, value: written(values[name] ?? about.default), placeholder: written(about.default) }, about.description)));
}

/** @param {any} value */
export const written = (value) => (typeof value === "string" ? value : JSON.stringify(value ?? null));

/**
 * The settings in a form that differ from those before.
 * @param {HTMLElement} inputs
 * @param {Record<string, any>} before
 */
export function changesIn(inputs, before) {
  /** @type {Record<string, any>} */
  const changes = {};
  for (const input of inputs.querySelectorAll("input")) {
    const value = parsed(input.value);
    if (JSON.stringify(value) !== JSON.stringify(before[input.name] ?? null)) changes[input.name] = value;
  }
  return changes;
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

export async function createQueue() {
  const schema = await settingsSchema();
  const defaults = Object.fromEntries(Object.entries(schema).map(([name, about]) => [name, /** @type {any} */ (about).default ?? null]));
  const name = field("Name", { name: "queue", required: true, autofocus: true });
  const inputs = settingInputs(schema, defaults);
  const fields = [name, h("details", {}, h("summary", {}, "Settings"), inputs)];
  if (!(await ask({ title: "Create a queue", fields, act: "Create" }))) return;
  const wanted = /** @type {HTMLInputElement} */ (name.querySelector("input")).value.trim();
  const path = `/v1/queues/${encodeURIComponent(wanted)}`;
  if (await attempt(() => api(path, { method: "PUT", json: changesIn(inputs, defaults) }), `${wanted} is created`)) {
    navigate(`/queues/${encodeURIComponent(wanted)}`);
  }
}

/**
 * Edit the settings of a queue that exists. Says what changes before it is changed.
 * @param {any} queue
 * @returns {Promise<boolean>}
 */
export async function editSettings(queue) {
  const schema = await settingsSchema();
  const inputs = settingInputs(schema, queue);
  if (!(await ask({ title: `Settings of ${queue.name}`, fields: inputs, act: "Review" }))) return false;
  const changes = changesIn(inputs, queue);
  const names = Object.keys(changes);
  if (!names.length) {
    note("Nothing was changed");
    return false;
  }
  const words = names.map((name) => h("li", {}, h("b", {}, name), `: ${written(queue[name])} → ${written(changes[name])}. `, h("small", {}, schema[name].description)));
  if (!(await ask({ title: `Change ${names.length === 1 ? "this setting" : `${names.length} settings`} of ${queue.name}?`, text: h("ul", { class: "changes" }, words), act: "Change" }))) return false;
  return attempt(() => api(`/v1/queues/${encodeURIComponent(queue.name)}`, { method: "PATCH", json: changes }), "The settings are changed");
}
