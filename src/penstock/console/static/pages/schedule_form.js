/** Create a schedule, or change one: when, where to, and what; the same can be copied for a program. */

import { api } from "../lib/api.js";
import { bodyFrom, textOf, wrongJson } from "../lib/body.js";
import { cli, curl, literal, python } from "../lib/code.js";
import { h } from "../lib/dom.js";
import { ask, choice, field, note } from "../lib/parts.js";

const CATCH_UP = ["one", "all", "none"];
const CRON = "Minute, hour, day of the month, month, day of the week: 30 2 * * mon-fri. Or leave it empty.";

/** @param {string} name */
const addressOf = (name) => `/v1/schedules/${encodeURIComponent(name)}`;

/** @param {any} row */
function inputs(row) {
  const zones = Intl.supportedValuesOf("timeZone");
  const given = (/** @type {string} */ label, /** @type {string} */ name, /** @type {any} */ more = {}, hint = "") =>
    field(label, { name, value: row[name] ?? "", ...more }, hint);
  const body = row.message_base64 !== undefined ? "" : (textOf(row) ?? "");
  return h(
    "div",
    { class: "settings" },
    given("By the calendar", "cron", { placeholder: "30 2 * * mon-fri" }, CRON),
    given("Time zone", "time_zone", { list: "zones", placeholder: "UTC" }),
    h(
      "datalist",
      { id: "zones" },
      zones.map((zone) => h("option", { value: zone })),
    ),
    given("Or every so many seconds", "every", { type: "number", min: 1, step: "any" }),
    given("Queue", "queue", {}, "A queue that exists; or leave it empty and name topics."),
    given("Topics", "topics", { value: (row.topics || []).join(", "), placeholder: "reports.daily" }),
    field("Message", { name: "message", rows: 5, value: body }, "JSON if it is JSON, else text."),
    choice(
      "Runs that were missed",
      { name: "catch_up", value: row.catch_up || "one" },
      CATCH_UP,
      "Make up for one, all or none of them.",
    ),
  );
}

/** What is in the form, as the broker takes it; null where a field is empty. @param {HTMLElement} form */
function definitionIn(form) {
  const text = (/** @type {string} */ name) =>
    /** @type {HTMLInputElement} */ (form.querySelector(`[name=${name}]`)).value.trim();
  const topics = text("topics")
    .split(",")
    .map((each) => each.trim())
    .filter(Boolean);
  return {
    cron: text("cron") || null,
    time_zone: text("cron") ? text("time_zone") || null : null,
    every: text("every") ? Number(text("every")) : null,
    queue: text("queue") || null,
    topics: topics.length && !text("queue") ? topics : null,
    message: bodyFrom(text("message"), ""),
    catch_up: text("catch_up"),
  };
}

/**
 * Whether it says when and where to, and its message is what it looks like. Points to what is wrong.
 * @param {HTMLElement} form
 */
function isComplete(form) {
  const { cron, every, queue, topics } = definitionIn(form);
  const named = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.querySelector(`[name=${name}]`));
  const wrong = wrongJson(named("message").value, "");
  named("cron").setCustomValidity(
    Boolean(cron) === Boolean(every) ? "Say when: by the calendar, or every so many seconds." : "",
  );
  named("queue").setCustomValidity(queue || topics ? "" : "Say where to: a queue, or topics.");
  named("message").setCustomValidity(wrong && `It looks like JSON, but is not: ${wrong}`);
  return ["cron", "queue", "message"].every((name) => named(name).reportValidity());
}

/** @param {Record<string, any>} fields */
const without = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));

/** @param {() => Promise<any>} again */
export async function createSchedule(again) {
  const name = field("Name", { required: true, autofocus: true });
  const form = inputs({});
  const wanted = () => /** @type {HTMLInputElement} */ (name.querySelector("input")).value.trim();
  const document = () => without(definitionIn(form));
  const work = async () => {
    const known = await api(addressOf(wanted())).catch(() => null);
    if (known) throw new Error(`There is a schedule ${wanted()} already: change it, or choose another name.`);
    await api(addressOf(wanted()), { method: "PUT", json: document() });
  };
  const code = () => codeOf(wanted(), document(), "create");
  const check = () => isComplete(form);
  if (!(await ask({ title: "Create a schedule", fields: [name, form], act: "Create", check, work, code }))) return;
  note(`${wanted()} is created`);
  await again();
}

/** @param {any} row @param {() => Promise<any>} again */
export async function changeSchedule(row, again) {
  const form = inputs(row);
  const before = definitionIn(form);
  const changes = () =>
    Object.fromEntries(
      Object.entries(definitionIn(form)).filter(
        ([name, value]) => JSON.stringify(value) !== JSON.stringify(/** @type {any} */ (before)[name]),
      ),
    );
  const work = () => api(addressOf(row.name), { method: "PATCH", json: instead(changes()) });
  const code = () => codeOf(row.name, instead(changes()), "change");
  const title = `Change the schedule ${row.name}`;
  if (!(await ask({ title, fields: form, act: "Change", check: () => isComplete(form), work, code }))) return;
  note(`${row.name} is changed`);
  await again();
}

/** Who names one of two kinds takes the other away by that. @param {Record<string, any>} changes */
function instead(changes) {
  const { cron, every, queue, topics, time_zone: zone, ...others } = changes;
  const when = cron ? { cron } : every ? { every } : {};
  const where = queue ? { queue } : topics ? { topics } : {};
  return { ...others, ...when, ...where, ...(zone === undefined || every ? {} : { time_zone: zone }) };
}

/** @param {string} name @param {Record<string, any>} fields @param {"create"|"change"} verb */
function codeOf(name, fields, verb) {
  const { message, cron, every, queue, topics, time_zone: zone, ...others } = fields;
  const words = typeof message === "string" ? message : JSON.stringify(message);
  const flags = Object.entries({ queue, message: words, cron, zone, every }).filter(([, value]) => value);
  const assigned = Object.entries(verb === "create" ? others : fields);
  const options = Object.entries(fields).filter(([key]) => verb === "change" || key !== "message");
  const named = options.map(([key, value]) => `, ${key}=${literal(value)}`).join("");
  return {
    cli: cli(
      "schedules",
      verb,
      name,
      ...assigned.map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`),
      ...(verb === "create" ? flags.map(([key, value]) => `--${key}=${value}`) : []),
      ...(verb === "create" ? (topics || []).map((/** @type {string} */ topic) => `--topic=${topic}`) : []),
    ),
    curl: curl(verb === "create" ? "PUT" : "PATCH", addressOf(name), fields),
    python: python(
      `client.schedules.${verb}(${literal(name)}${verb === "create" ? `, ${literal(message)}` : ""}${named})`,
    ),
  };
}
