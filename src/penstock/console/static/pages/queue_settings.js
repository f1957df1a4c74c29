/** The settings of a queue: a form from the broker's own description, and what a change means in words. */

import { api } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { figures } from "../lib/live.js";
import { ask, choice, field, note, tick } from "../lib/parts.js";
import { navigate } from "../lib/route.js";
import { isPolicyComplete, policyFields, policyIn, policyText, queueToCreate } from "./redrive_policy.js";

const POLICY = "redrive_policy";
const SUGGESTED = 1000;
const LEAST_ABOVE_ZERO = 0.001;

/** @type {Promise<any>|undefined} */
let described;

/** Every setting with its description and default, as OpenAPI has them, under old names too. */
function allSettings() {
  described ??= api("/openapi.json").then((document) => document.components.schemas.NativeQueueSettings.properties);
  return described;
}

/** The settings under the names that they have now, or only under their old ones. */
const settingsSchema = async (old = false) =>
  Object.fromEntries(Object.entries(await allSettings()).filter(([, about]) => Boolean(about.deprecated) === old));

/** The settings that a queue shows, without those that it shows twice. @param {Record<string, any>} settings */
export async function settingsOnce(settings) {
  const old = await settingsSchema(true);
  return Object.fromEntries(Object.entries(settings).filter(([name]) => !(name in old)));
}

/** The names of the queues that there are, for suggestions. */
const queueNames = async () => (await figures({ limit: SUGGESTED })).queues.map((/** @type {any} */ each) => each.name);

/**
 * An input for each setting, after its type.
 * @param {Record<string, any>} schema
 * @param {Record<string, any>} values
 * @param {string[]} queues
 */
function settingInputs(schema, values, queues) {
  const inputs = h(
    "div",
    { class: "settings" },
    Object.entries(schema).map(([name, about]) =>
      name === POLICY ? policyFields(values[name], queues) : inputFor(name, about, values[name] ?? null),
    ),
  );
  // A browser cannot point to a field that is folded away.
  inputs.addEventListener("invalid", () => inputs.closest("details")?.setAttribute("open", ""), true);
  return inputs;
}

/** @param {string} name @param {any} about @param {any} value */
function inputFor(name, about, value) {
  const hint = about.description.replaceAll("`", "").replace("null:", "empty:");
  if (about.type === "boolean") return tick(name, { name, checked: value }, hint);
  if (about.enum) return choice(name, { name, value }, about.enum, hint);
  const number = about.anyOf?.find((/** @type {any} */ each) => each.type !== "null") || about;
  const least = number.minimum ?? LEAST_ABOVE_ZERO;
  return field(
    name,
    {
      name,
      type: "number",
      value: value ?? "",
      min: least,
      max: number.maximum,
      step: number.type === "integer" ? 1 : "any",
      required: number === about,
    },
    hint,
  );
}

/** A value as it is written in a request; the policy as it is said. @param {string} name @param {any} value */
export function written(name, value) {
  if (value === null) return "none";
  if (name === POLICY) return policyText(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

/**
 * The settings in a form that differ from those before.
 * @param {HTMLElement} inputs
 * @param {Record<string, any>} before
 */
function changesIn(inputs, before) {
  const named = /** @type {NodeListOf<HTMLInputElement>} */ (inputs.querySelectorAll("[name]"));
  const values = {
    [POLICY]: policyIn(inputs),
    ...Object.fromEntries([...named].map((input) => [input.name, valueOf(input)])),
  };
  return Object.fromEntries(
    Object.entries(values).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name] ?? null)),
  );
}

/** @param {HTMLInputElement} input */
function valueOf(input) {
  if (input.type === "checkbox") return input.checked;
  if (input.type === "number") return input.value === "" ? null : Number(input.value);
  return input.value;
}

/**
 * Send settings; first create the dead-letter queue, if that was ticked.
 * @param {HTMLElement} inputs
 * @param {() => Promise<any>} work
 */
async function send(inputs, work) {
  const missing = queueToCreate(inputs);
  if (missing) await api(`/v1/queues/${encodeURIComponent(missing)}`, { method: "PUT", json: {} });
  return work();
}

export async function createQueue() {
  const [schema, queues] = await Promise.all([settingsSchema(), queueNames()]);
  const defaults = Object.fromEntries(
    Object.entries(schema).map(([name, about]) => [name, /** @type {any} */ (about).default ?? null]),
  );
  const name = field("Name", { required: true, autofocus: true });
  const inputs = settingInputs(schema, defaults, queues);
  const fields = [name, h("details", {}, h("summary", {}, "Settings"), inputs)];
  const wanted = () => /** @type {HTMLInputElement} */ (name.querySelector("input")).value.trim();
  const work = () =>
    send(inputs, () =>
      api(`/v1/queues/${encodeURIComponent(wanted())}`, { method: "PUT", json: changesIn(inputs, defaults) }),
    );
  if (!(await ask({ title: "Create a queue", fields, act: "Create", check: () => isPolicyComplete(inputs), work })))
    return;
  note(`${wanted()} is created`);
  navigate(`/queues/${encodeURIComponent(wanted())}`);
}

/**
 * Edit the settings of a queue that exists. Says what changes before it is changed; the way back leads to the same
 * input.
 * @param {any} queue
 * @returns {Promise<string[]>} The names of what was changed.
 */
export async function editSettings(queue) {
  const [schema, queues] = await Promise.all([settingsSchema(), queueNames()]);
  const inputs = settingInputs(schema, queue, queues);
  while (
    await ask({
      title: `Settings of ${queue.name}`,
      fields: inputs,
      act: "Review",
      check: () => isPolicyComplete(inputs),
    })
  ) {
    const changes = changesIn(inputs, queue);
    const names = Object.keys(changes);
    if (!names.length) {
      note("Nothing was changed");
      return [];
    }
    if (
      await ask({
        ...question(queue, schema, changes, queueToCreate(inputs)),
        work: () =>
          send(inputs, () => api(`/v1/queues/${encodeURIComponent(queue.name)}`, { method: "PATCH", json: changes })),
      })
    ) {
      note("The settings are changed");
      return names;
    }
  }
  return [];
}

/**
 * What will change, in words.
 * @param {any} queue
 * @param {Record<string, any>} schema
 * @param {Record<string, any>} changes
 * @param {string} missing
 */
function question(queue, schema, changes, missing) {
  const names = Object.keys(changes);
  const words = names.map((name) =>
    h(
      "li",
      {},
      h("b", {}, name),
      `: ${written(name, queue[name])} → ${written(name, changes[name])}. `,
      h("small", {}, schema[name].description.replaceAll("`", "")),
    ),
  );
  const created = missing && h("li", {}, `The queue ${missing} is created first.`);
  return {
    title: `Change ${names.length === 1 ? "this setting" : `${names.length} settings`} of ${queue.name}?`,
    text: h("ul", { class: "changes" }, words, created),
    act: "Change",
    back: "Back",
  };
}
