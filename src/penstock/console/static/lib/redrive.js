/**
 * Move messages: dead letters back to where they came from, or any to another queue. Count first, show them, ask, move,
 * and say where they went.
 */

import { ApiError, api, url } from "./api.js";
import { previews } from "./body.js";
import { cli, curl, literal, python } from "./code.js";
import { dictionary } from "./dictionary.js";
import { h, show } from "./dom.js";
import { count, plural } from "./format.js";
import { ask, attempt, button, field, note, queueLink } from "./parts.js";

const SAMPLE = 1000;
const SHOWN = 5;
const LOOK_MS = 500;
const IDS_MAX = 1000; // In one redrive.
const WORDS = dictionary({
  reason: "because of",
  origin: "from",
  ready_since: "failed since",
  ready_until: "failed before",
});

/** @typedef {{from: string, filter: Record<string, string>}} Order */

/** @param {Order[]} orders @param {Element} progress @param {() => void} [again] what to do when they are moved */
export async function redrive(orders, progress, again = reload) {
  const here = location.hash;
  const parts = orders.flatMap(cut);
  await attempt(async () => {
    let matched = 0;
    for (const order of parts)
      matched += (
        await finished(await api("/v1/redrive", { method: "POST", json: { ...order, dry_run: true } }), () => {})
      ).matched;
    if (!matched) return note(`No message of ${orders.map((order) => order.from).join(", ")} matches`);
    const sample = await sampleOf(orders);
    const wanted = await asked(orders, matched, sample);
    if (!wanted) return undefined;
    let moved = 0;
    for (const order of parts) {
      const job = await finished(await api("/v1/redrive", { method: "POST", json: { ...order, ...wanted } }), (now) =>
        drawProgress(progress, now, moved, matched),
      );
      moved += job.moved;
      if (job.state !== "done") break;
    }
    show(progress);
    const left = matched - moved;
    note([
      `${plural(moved, "message")} moved to `,
      links(wanted.to ? [wanted.to] : sample.origins),
      left > 0 && `; ${count(left)} stayed: a consumer holds them, or their queue is gone`,
    ]);
    if (location.hash === here) again();
    return undefined;
  });
}

const reload = () => dispatchEvent(new HashChangeEvent("hashchange"));

/** As many ids at once as the broker takes. @param {Order} order @returns {Order[]} */
function cut({ from, filter }) {
  const ids = filter.id?.split(",") || [];
  if (ids.length <= IDS_MAX) return [{ from, filter }];
  return Array.from({ length: Math.ceil(ids.length / IDS_MAX) }, (_, at) => ({
    from,
    filter: { ...filter, id: ids.slice(at * IDS_MAX, (at + 1) * IDS_MAX).join(",") },
  }));
}

/**
 * The first messages, and the queues that they came from.
 * @param {Order[]} orders
 * @returns {Promise<{rows: any[], origins: string[]}>}
 */
async function sampleOf(orders) {
  const found = await Promise.all(
    orders.map(async ({ from, filter }) => {
      const id = filter.id?.split(",").slice(0, 100).join(","); // They have to fit into an address.
      return (await api(url("/v1/search", { queue: from, ...filter, id, limit: SAMPLE, bodies: "false" }))).messages;
    }),
  );
  const all = found.flat();
  const ids = all
    .slice(0, SHOWN)
    .map((/** @type {any} */ each) => each.id)
    .join(",");
  const rows = ids ? (await api(url("/v1/search", { id: ids }))).messages : [];
  return { rows, origins: [...new Set(all.map((/** @type {any} */ each) => each.origin).filter(Boolean))].sort() };
}

/**
 * Ask where to, and how fast. Null: not at all.
 * @param {Order[]} orders
 * @param {number} matched
 * @param {{rows: any[], origins: string[]}} sample
 */
async function asked(orders, matched, { rows, origins }) {
  const usual = origins.length === 1 ? origins[0] : "";
  const several = origins.length > 1 ? `Empty: each goes back to where it came from, ${origins.join(" or ")}.` : "";
  const to = field(
    "To",
    { name: "to", value: usual, required: !origins.length },
    several ||
      (usual
        ? "The queue that they came from. You may write another one."
        : "They were published here: write the queue that they go to."),
  );
  const speed = field("Messages a second, at most", { name: "rate", type: "number", min: 1, placeholder: "no limit" });
  const [target, most] = [to, speed].map((each) => /** @type {HTMLInputElement} */ (each.querySelector("input")));
  const warning = h("div", { class: "soon", role: "status" });
  const warn = async () => {
    const names = target.value.trim() ? [target.value.trim()] : origins;
    const lines = await Promise.all(names.map(warningOf));
    show(
      warning,
      lines.filter(Boolean).map((line) => h("p", {}, line)),
    );
  };
  target.addEventListener("change", warn);
  await warn();
  const wanted = () => {
    const other = target.value.trim() === usual ? "" : target.value.trim();
    return { ...(other ? { to: other } : {}), ...(most.value ? { rate: Number(most.value) } : {}) };
  };
  const only = orders
    .flatMap(({ filter }) => Object.entries(filter))
    .filter(([key]) => key !== "id")
    .map(([key, value]) => `${WORDS[key] || key} ${value}`)
    .join(", ");
  const text = [
    h("p", {}, `${only ? `Only: ${only}. ` : ""}Their receives count from 0 again.`),
    previews(rows, matched),
  ];
  const title = `Move ${plural(matched, "message")} out of ${orders.map((order) => order.from).join(", ")}?`;
  return (await ask({
    title,
    text,
    fields: [to, warning, speed],
    act: `Move ${count(matched)}`,
    code: () => codeOf(orders, wanted()),
  }))
    ? wanted()
    : null;
}

/** @param {Order[]} orders @param {{to?: string, rate?: number, dry_run?: boolean}} more */
export function codeOf(orders, more) {
  const flags = [more.to && `--to=${more.to}`, more.rate && `--rate=${more.rate}`, more.dry_run && "--dry-run"].filter(
    Boolean,
  );
  const named = { ...more, dry_run: more.dry_run || undefined };
  const options = (/** @type {Order} */ { filter }) =>
    Object.entries({ filter: Object.keys(filter).length ? filter : undefined, ...named })
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => `, ${name}=${literal(value)}`)
      .join("");
  return {
    cli: orders
      .map(({ from, filter }) =>
        cli(
          "queues",
          "redrive",
          from,
          ...Object.entries(filter).map(([name, value]) => `--filter=${name}=${value}`),
          ...flags,
        ),
      )
      .join("\n"),
    curl: orders.map((order) => curl("POST", "/v1/redrive", { ...order, ...named })).join("\n"),
    python: python(...orders.map((order) => `print(client.redrive(${literal(order.from)}${options(order)}))`)),
  };
}

/** Why messages would only wait in a queue; empty if somebody takes them. @param {string} name */
async function warningOf(name) {
  try {
    const [queue, { consumers }] = await Promise.all([
      api(`/v1/queues/${encodeURIComponent(name)}`),
      api(url("/v1/consumers", { queue: name, limit: 1 })),
    ]);
    return queue.push || consumers.length
      ? ""
      : `${name}: nobody consumes it now. The messages wait there until somebody does.`;
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

/** @param {Element} progress @param {any} job @param {number} before @param {number} all */
function drawProgress(progress, job, before, all) {
  const stop = () => attempt(() => api(`/v1/redrive/${job.job}`, { method: "DELETE" }), "The redrive is stopped");
  const moved = before + job.moved;
  show(
    progress,
    h(
      "div",
      { class: "panel" },
      h("div", { class: "heading" }, `${count(moved)} of ${plural(all, "message")} moved`, button("Stop", stop)),
      h("progress", { value: moved, max: all, "aria-label": "Messages moved" }),
    ),
  );
}
