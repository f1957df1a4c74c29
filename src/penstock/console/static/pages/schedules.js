/** Schedules: messages that will be published again and again, and messages that are delayed. */

import { api } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { count, duration, seconds, time } from "../lib/format.js";
import { endOf } from "../lib/letters.js";
import { curl, literal, sameAs } from "../lib/code.js";
import { preview } from "../lib/body.js";
import { action, ask, attempt, badge, field, heading, messageLink, queueLink, table } from "../lib/parts.js";
import { every, signal } from "../lib/reactive.js";
import { changeSchedule, createSchedule } from "./schedule_form.js";

const DAY = 86_400;
const LOOK_SECONDS = 2;
const SHOWN = 200;

/** @typedef {{schedules: any[], messages: any[], next: any}} Plans */

/** @returns {Promise<Plans>} */
export const load = async () => {
  const [{ schedules }, { messages, next }] = await Promise.all([
    api("/v1/schedules?limit=1000"),
    api(`/v1/schedule?limit=${SHOWN}`),
  ]);
  return { schedules, messages, next };
};

/**
 * Rows are drawn anew only when one comes or goes, so that a button stays under the pointer.
 * @param {any} _
 * @param {Plans} found
 */
export function page(_, found) {
  const plans = signal(found);
  const now = signal(Date.now() / 1000);
  const [names, delays] = [signal(namesOf(found)), signal(delaysOf(found))];
  const runs = lastRuns();
  const look = () =>
    load().then(
      (next) => {
        plans.set(next);
        names.set(namesOf(next));
        delays.set(delaysOf(next));
        return runs.look(next.schedules);
      },
      () => {},
    );
  every(1, () => now.set(Date.now() / 1000));
  every(LOOK_SECONDS, look);
  runs.look(found.schedules);
  const until = (/** @type {string} */ moment) => `in ${duration(Math.max(0, Math.ceil(seconds(moment) - now())))}`;
  return [
    heading(
      "Schedules",
      action("Create a schedule", () => createSchedule(look), { class: "primary" }),
    ),
    h("section", {}, h("h2", {}, "The next day"), () => nextDay(plans().schedules)),
    h("section", {}, h("h2", {}, "Recurring"), () => (names(), recurring(plans, runs, until, look))),
    h(
      "section",
      {},
      h("h2", {}, "Delayed messages, the next one first"),
      () => (delays(), delayed(plans.peek(), until, look)),
    ),
  ];
}

/** @param {Plans} plans */
const namesOf = ({ schedules }) => schedules.map((each) => each.name).join("\n");

/** @param {Plans} plans */
const delaysOf = ({ messages }) => messages.map((each) => `${each.id} ${each.visible_at}`).join("\n");

/** What became of the last message of each schedule; asked for until it is finished. */
function lastRuns() {
  /** @type {Map<string, any>} */
  const known = new Map();
  const version = signal(0);
  const look = async (/** @type {any[]} */ schedules) => {
    for (const { last_id: id } of schedules) {
      if (!id || known.get(id)?.isOver) continue;
      known.set(id, await api(`/v1/messages/${id}`).then(outcomeOf, () => ({ words: "", isOver: true })));
      version.set(version.peek() + 1);
    }
  };
  return { look, of: (/** @type {string} */ id) => (version(), known.get(id)) };
}

/** @param {any} found */
function outcomeOf({ status, events, created }) {
  if (status !== "gone") return { words: status === "leased" ? "in work" : status, isOver: false };
  const [words, tone] = endOf(events);
  return { words: `${words} in ${duration(seconds(events.at(-1).time) - seconds(created))}`, tone, isOver: true };
}

/**
 * @param {(() => Plans) & {peek: () => Plans}} plans
 * @param {any} runs
 * @param {(moment: string) => string} until
 * @param {() => Promise<any>} look
 */
function recurring(plans, runs, until, look) {
  const now = (/** @type {any} */ row) => plans().schedules.find((each) => each.name === row.name) || row;
  const latest = (/** @type {any} */ row) => plans.peek().schedules.find((each) => each.name === row.name) || row;
  const acts = (/** @type {any} */ row) =>
    h(
      "div",
      { class: "actions tight" },
      action(/** @type {any} */ (() => (now(row).paused ? "Continue" : "Pause")), () => pause(latest(row)).then(look)),
      action("Change", () => changeSchedule(latest(row), look), { "aria-label": `Change ${row.name}` }),
      action("Run now", () => run(row).then(look)),
      action("Delete", () => removeSchedule(row).then(look), { class: "plain bad" }),
    );
  return table(
    "Recurring schedules",
    [
      { label: "Name", cell: (row) => row.name },
      { label: "When", cell: (row) => () => h("span", { class: "wrap" }, whenOf(now(row))) },
      { label: "To", minor: true, cell: (row) => () => whereTo(now(row)) },
      {
        label: "Next",
        cell: (row) => () =>
          now(row).paused
            ? badge("paused", "soon")
            : h("span", { title: time(now(row).next_run) }, until(now(row).next_run)),
      },
      { label: "Last", cell: (row) => () => lastRun(now(row), runs) },
      { label: "Trouble", minor: true, cell: (row) => () => trouble(now(row)) },
      { label: "Runs", number: true, spare: true, cell: (row) => () => count(now(row).runs) },
      { label: "", acts: true, cell: acts },
    ],
    plans.peek().schedules,
    {
      empty: [
        h("p", {}, "There are none. Publish a message every ten minutes:"),
        h(
          "pre",
          {},
          curl("PUT", "/v1/schedules/heartbeat", { topics: ["heartbeat"], message: "still here", every: 600 }),
        ),
      ],
    },
  );
}

/** @param {any} row */
const whenOf = ({ cron, time_zone: zone, every: interval }) =>
  cron ? `${cron} ${zone}` : `every ${duration(interval)}`;

/** @param {any} row */
const whereTo = ({ queue, topics }) => (queue ? queueLink(queue) : (topics || []).join(", "));

/** When it ran last, and whether that worked. @param {any} row @param {any} runs */
function lastRun({ last_id: id, last_run: moment }, runs) {
  if (!id) return h("span", { class: "quiet" }, "never yet");
  const { words = "", tone = "" } = runs.of(id) || {};
  return h("a", { class: tone === "bad" ? "bad" : null, href: `#/messages/${id}` }, `${time(moment)} ${words}`);
}

/** @param {any} row */
const trouble = ({ last_error: error, missed }) =>
  error
    ? h("span", { class: "wrap bad" }, error)
    : missed
      ? h("span", { class: "soon" }, `${count(missed)} missed`)
      : "–";

/** One row for each schedule, with when it runs first. @param {any[]} schedules */
function nextDay(schedules) {
  const now = Date.now() / 1000;
  const running = schedules.filter((each) => each.next_run && seconds(each.next_run) < now + DAY);
  const rows = running
    .map((each) => ({ name: each.name, at: seconds(each.next_run), every: each.every }))
    .sort((one, other) => one.at - other.at);
  if (!rows.length) return h("div", { class: "empty" }, "Nothing is planned for the next day.");
  return h(
    "div",
    { class: "day panel" },
    rows.map((row) => {
      const mark = h("span", { class: "mark", title: `${row.name}: ${time(row.at)}` });
      mark.style.left = `${((row.at - now) / DAY) * 100}%`;
      return h(
        "div",
        { class: "lane" },
        h("span", { class: "label" }, row.name),
        h("span", { class: "track" }, mark),
        h("span", { class: "quiet" }, `${time(row.at)}${row.every ? `, then every ${duration(row.every)}` : ""}`),
      );
    }),
  );
}

/** @param {Plans} plans @param {(moment: string) => string} until @param {() => Promise<any>} look */
function delayed({ messages, next }, until, look) {
  const acts = (/** @type {any} */ row) =>
    h(
      "div",
      { class: "actions tight" },
      action("Move", () => reschedule(row).then(look)),
      action("Delete", () => cancel(row).then(look), { class: "plain bad" }),
    );
  return h(
    "div",
    {},
    table(
      "Delayed messages",
      [
        { label: "Message", cell: (row) => messageLink(row.id) },
        { label: "Queue", cell: (row) => queueLink(row.queue) },
        { label: "Ready at", cell: (row) => [`${time(row.visible_at)} (`, () => until(row.visible_at), ")"] },
        {
          label: "Body",
          minor: true,
          grow: true,
          cell: (row) => h("span", { class: "preview mono", title: preview(row) }, preview(row)),
        },
        { label: "", acts: true, cell: acts },
      ],
      messages,
      { empty: "No message is delayed." },
    ),
    next ? h("p", { class: "quiet" }, `The first ${SHOWN}.`) : null,
  );
}

/** @param {any} row */
const at = (row) => `/v1/schedules/${encodeURIComponent(row.name)}`;

/** @param {any} row */
async function pause(row) {
  const act = row.paused ? "Continue" : "Pause";
  const json = { paused: !row.paused };
  const call = `client.schedules.change(${literal(row.name)}, paused=${literal(!row.paused)})`;
  const code = () => sameAs(["schedules", row.paused ? "resume" : "pause", row.name], ["PATCH", at(row), json], call);
  if (await ask({ title: `${act} ${row.name}?`, act, code }))
    await attempt(
      () => api(at(row), { method: "PATCH", json: { paused: !row.paused } }),
      `${row.name} is ${row.paused ? "running" : "paused"}`,
    );
}

/** @param {any} row */
async function run(row) {
  const title = `Publish one message of ${row.name} now?`;
  const code = () =>
    sameAs(["schedules", "run", row.name], ["POST", `${at(row)}/run`], `client.schedules.run(${literal(row.name)})`);
  if (await ask({ title, text: "Its plan stays as it is.", act: "Run now", code }))
    await attempt(() => api(`${at(row)}/run`, { method: "POST" }), `${row.name} has run`);
}

/** @param {any} row */
async function removeSchedule(row) {
  if (
    await ask({
      title: `Delete the schedule ${row.name}?`,
      text: "Messages that it has published stay.",
      act: "Delete",
      typed: row.name,
      danger: true,
      code: () =>
        sameAs(
          ["schedules", "delete", row.name, "--yes"],
          ["DELETE", at(row)],
          `client.schedules.delete(${literal(row.name)})`,
        ),
    })
  )
    await attempt(() => api(at(row), { method: "DELETE" }), `${row.name} is deleted`);
}

/** @param {any} row */
async function reschedule(row) {
  const input = field("Ready at", { value: row.visible_at }, "RFC 3339. A time in the past makes it ready at once.");
  if (await ask({ title: "Move this message in time?", fields: input, act: "Move" })) {
    const visible = /** @type {HTMLInputElement} */ (input.querySelector("input")).value;
    await attempt(
      () => api(`/v1/schedule/${row.id}`, { method: "PATCH", json: { visible_at: visible } }),
      "The message is moved",
    );
  }
}

/** @param {any} row */
async function cancel(row) {
  if (
    await ask({
      title: "Delete 1 delayed message?",
      text: `From ${row.queue}. This cannot be undone.`,
      act: "Delete",
      danger: true,
    })
  )
    await attempt(() => api(`/v1/schedule/${row.id}`, { method: "DELETE" }), "1 message deleted");
}
