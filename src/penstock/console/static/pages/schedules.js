/** Schedules: messages that will be published again and again, and messages that are delayed. */

import { api } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { count, duration, seconds, time } from "../lib/format.js";
import { curl } from "../lib/code.js";
import { preview } from "../lib/body.js";
import { action, ask, attempt, badge, field, heading, loaded, messageLink, queueLink, table } from "../lib/parts.js";

const DAY = 86_400;
const again = () => dispatchEvent(new HashChangeEvent("hashchange"));

export const load = () => api("/v1/schedules?limit=1000");

/** @param {any} _ @param {any} data */
export function page(_, { schedules }) {
  return [
    heading("Schedules"),
    h("section", {}, h("h2", {}, "The next day"), nextDay(schedules)),
    h("section", {}, h("h2", {}, "Recurring"), recurring(schedules)),
    h("section", {}, h("h2", {}, "Delayed messages, the next one first"), loaded(() => api("/v1/schedule?limit=200"), delayed)),
  ];
}

/** @param {any[]} schedules */
function recurring(schedules) {
  return table("Recurring schedules", [
    { label: "Name", cell: (row) => row.name },
    { label: "When", cell: (row) => (row.cron ? `${row.cron} ${row.time_zone}` : `every ${duration(row.every)}`) },
    { label: "To", cell: (row) => (row.queue ? queueLink(row.queue) : (row.topics || []).join(", ")) },
    { label: "Next", cell: (row) => (row.paused ? badge("paused", "soon") : h("span", { title: time(row.next_run) }, `in ${duration(seconds(row.next_run) - Date.now() / 1000)}`)) },
    { label: "Last", minor: true, cell: (row) => (row.last_id ? h("a", { href: `#/messages/${row.last_id}` }, time(row.last_run)) : "–") },
    { label: "Trouble", cell: (row) => (row.last_error ? h("span", { class: "wrap bad" }, row.last_error) : row.missed ? h("span", { class: "wrap soon" }, `${count(row.missed)} missed`) : "–") },
    { label: "Runs", number: true, minor: true, cell: (row) => count(row.runs) },
    { label: "Missed", number: true, minor: true, cell: (row) => count(row.missed) },
    { label: "", cell: (row) => [action(row.paused ? "Continue" : "Pause", () => pause(row)), " ", action("Run now", () => run(row)), " ", action("Delete", () => removeSchedule(row), { class: "plain bad" })] },
  ], schedules, { empty: [h("p", {}, "There are none. Publish a message every ten minutes:"), h("pre", {}, curl("PUT", "/v1/schedules/heartbeat", { topics: ["heartbeat"], message: "still here", every: 600 }))] });
}

/** One row an hour, with what runs in it. @param {any[]} schedules */
function nextDay(schedules) {
  const now = Date.now() / 1000;
  const running = schedules.filter((each) => each.next_run && seconds(each.next_run) < now + DAY);
  const rows = running.map((each) => ({ name: each.name, at: seconds(each.next_run), every: each.every })).sort((one, other) => one.at - other.at);
  if (!rows.length) return h("div", { class: "empty" }, "Nothing is planned for the next day.");
  return h("div", { class: "day panel" }, rows.map((row) => {
    const mark = h("span", { class: "mark", title: `${row.name}: ${time(row.at)}` });
    mark.style.left = `${((row.at - now) / DAY) * 100}%`;
    return h("div", { class: "lane" }, h("span", { class: "label" }, row.name), h("span", { class: "track" }, mark), h("span", { class: "quiet" }, `${time(row.at)}${row.every ? `, then every ${duration(row.every)}` : ""}`));
  }));
}

/** @param {any} found */
function delayed({ messages, next }) {
  return [table("Delayed messages", [
    { label: "Message", cell: (row) => messageLink(row.id) },
    { label: "Queue", cell: (row) => queueLink(row.queue) },
    { label: "Ready at", cell: (row) => `${time(row.visible_at)} (in ${duration(seconds(row.visible_at) - Date.now() / 1000)})` },
    { label: "Body", minor: true, cell: (row) => h("span", { class: "preview mono" }, preview(row)) },
    { label: "", cell: (row) => [action("Move", () => reschedule(row)), " ", action("Delete", () => cancel(row), { class: "plain bad" })] },
  ], messages, { empty: "No message is delayed." }), next ? h("p", { class: "quiet" }, "The first 200.") : null];
}

/** @param {any} row */
const at = (row) => `/v1/schedules/${encodeURIComponent(row.name)}`;

/** @param {any} row */
async function pause(row) {
  const act = row.paused ? "Continue" : "Pause";
  if (await ask({ title: `${act} ${row.name}?`, act })) await attempt(() => api(at(row), { method: "PATCH", json: { paused: !row.paused } }), `${row.name} is ${row.paused ? "running" : "paused"}`).then(again);
}

/** @param {any} row */
async function run(row) {
  if (await ask({ title: `Publish one message of ${row.name} now?`, text: "Its plan stays as it is.", act: "Run now" })) await attempt(() => api(`${at(row)}/run`, { method: "POST" }), `${row.name} has run`).then(again);
}

/** @param {any} row */
async function removeSchedule(row) {
  if (await ask({ title: `Delete the schedule ${row.name}?`, text: "Messages that it has published stay.", act: "Delete", typed: row.name, danger: true })) await attempt(() => api(at(row), { method: "DELETE" }), `${row.name} is deleted`).then(again);
}

/** @param {any} row */
async function reschedule(row) {
  const input = field("Ready at", { value: row.visible_at }, "RFC 3339. A time in the past makes it ready at once.");
  if (await ask({ title: "Move this message in time?", fields: input, act: "Move" })) {
    const visible = /** @type {HTMLInputElement} */ (input.querySelector("input")).value;
    await attempt(() => api(`/v1/schedule/${row.id}`, { method: "PATCH", json: { visible_at: visible } }), "The message is moved").then(again);
  }
}

/** @param {any} row */
async function cancel(row) {
  if (await ask({ title: "Delete 1 delayed message?", text: `From ${row.queue}. This cannot be undone.`, act: "Delete", danger: true })) await attempt(() => api(`/v1/schedule/${row.id}`, { method: "DELETE" }), "1 message deleted").then(again);
}
