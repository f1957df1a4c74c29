/** The way back for dead letters: count first, say where they go, ask, move, and say where they went. */

import { ApiError, api, url } from "../lib/api.js";
import { dictionary } from "../lib/dictionary.js";
import { h, show } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";
import { ask, attempt, button, field, note, queueLink } from "../lib/parts.js";

const SAMPLE = 1000;
const LOOK_MS = 500;
const WORDS = dictionary({ reason: "because of", origin: "from", ready_since: "failed since", ready_until: "failed before" });

/** @typedef {{from: string, filter: Record<string, string>}} Order */

/** @param {Order} order @param {Element} progress */
export async function redrive(order, progress) {
  const here = location.hash;
  await attempt(async () => {
    const dry = await finished(await api("/v1/redrive", { method: "POST", json: { ...order, dry_run: true } }), () => {});
    if (!dry.matched) return note(`No message of ${order.from} matches`);
    const origins = await originsOf(order);
    const wanted = await asked(order, dry.matched, origins);
    if (!wanted) return undefined;
    const job = await api("/v1/redrive", { method: "POST", json: wanted });
    const done = await finished(job, (now) => drawProgress(progress, now, dry.matched));
    note([`${plural(done.moved, "message")} moved to `, links(wanted.to ? [wanted.to] : origins)]);
    if (location.hash === here) dispatchEvent(new HashChangeEvent("hashchange"));
    return undefined;
  });
}

/** The queues that the messages came from. @param {Order} order @returns {Promise<string[]>} */
async function originsOf({ from, filter }) {
  const { messages } = await api(url("/v1/search", { queue: from, ...filter, bodies: "false", limit: SAMPLE }));
  return [...new Set(messages.map((/** @type {any} */ each) => each.origin).filter(Boolean))].sort();
}

/** Ask where to, and how fast. Null: not at all. @param {Order} order @param {number} matched @param {string[]} origins */
async function asked(order, matched, origins) {
  const usual = origins.length === 1 ? origins[0] : "";
  const several = origins.length > 1 ? `Empty: each goes back to where it came from, ${origins.join(" or ")}.` : "";
  const to = field("To", { name: "to", value: usual, required: !origins.length }, several || (usual ? "The queue that they came from. You may write another one." : "They were published here: write the queue that they go to."));
  const speed = field("Messages a second, at most", { name: "rate", type: "number", min: 1, placeholder: "no limit" });
  const [target, most] = [to, speed].map((each) => /** @type {HTMLInputElement} */ (each.querySelector("input")));
  const warning = h("div", { class: "soon", role: "status" });
  const warn = async () => {
    const names = target.value.trim() ? [target.value.trim()] : origins;
    const lines = await Promise.all(names.map(warningOf));
    show(warning, lines.filter(Boolean).map((line) => h("p", {}, line)));
  };
  target.addEventListener("change", warn);
  await warn();
  const only = Object.entries(order.filter).map(([key, value]) => `${WORDS[key] || key} ${value}`).join(", ");
  const text = `${only ? `Only: ${only}. ` : ""}Their receives count from 0 again.`;
  if (!(await ask({ title: `Move ${plural(matched, "message")} out of ${order.from}?`, text, fields: [to, warning, speed], act: `Move ${count(matched)}` }))) return null;
  const other = target.value.trim() === usual ? "" : target.value.trim();
  return { ...order, ...(other ? { to: other } : {}), ...(most.value ? { rate: Number(most.value) } : {}) };
}

/** Why messages would only wait in a queue; empty if somebody takes them. @param {string} name */
async function warningOf(name) {
  try {
    const [queue, { consumers }] = await Promise.all([api(`/v1/queues/${encodeURIComponent(name)}`), api(url("/v1/consumers", { queue: name, limit: 1 }))]);
    return queue.push || consumers.length ? "" : `${name}: nobody consumes it now. The messages wait there until somebody does.`;
  } catch (error) {
    return error instanceof ApiError && error.status === 404 ? `${name}: there is no such queue.` : "";
  }
}

/** @param {string[]} names */
const links = (names) => names.map((name, at) => [at ? ", " : "", queueLink(name)]);

/** @param {any} job @param {(job: any) => void} report */
async function finished(job, report) {
  while (job.state === "running") {
    report(job);
    await new Promise((done) => setTimeout(done, LOOK_MS));
    job = await api(`/v1/redrive/${job.job}`);
  }
  return job;
}

/** @param {Element} progress @param {any} job @param {number} all */
function drawProgress(progress, job, all) {
  const stop = () => attempt(() => api(`/v1/redrive/${job.job}`, { method: "DELETE" }), "The redrive is stopped");
  show(progress, h("div", { class: "panel" }, h("div", { class: "heading" }, `${count(job.moved)} of ${plural(all, "message")} moved`, button("Stop", stop)), h("progress", { value: job.moved, max: all, "aria-label": "Messages moved" })));
}
