/** The figures of the broker, once a second, over one stream for the page that is shown. */

import { ApiError, api, follow, url } from "./api.js";
import { onLeave, signal } from "./reactive.js";

const TARGET_BYTES = 6000; // The broker accepts 8 KiB in a request line.
const AGAIN_SECONDS = 2;
const KEPT_SECONDS = 3600;
const FIELDS = ["ready", "in", "out", "delivered", "retried", "failed", "wait_p50", "wait_p99"];

/** Whether figures arrive: "waiting", "live", or a sentence that says why not. */
export const connection = signal("waiting");

/** Whether figures that were there arrive no more. */
export const isLate = () => !["waiting", "live"].includes(connection());

/** When figures came last, in seconds since the epoch; 0: never. */
export const heard = signal(0);

/**
 * @typedef {Record<string, any>} Figures
 * @typedef {{times: number[], values: Record<string, (number|null)[]>}} Series
 */

/** Follow all queues together, and the queues that `watch` names, until the page is left. */
export function watchFigures() {
  const totals = signal(/** @type {Figures|null} */ (null));
  const attention = signal(/** @type {any[]} */ ([]));
  const latest = signal(/** @type {any} */ ({})); // All of the latest event.
  const tick = signal(0);
  /** @type {Map<string, Figures>} */
  const queues = new Map();
  /** @type {Map<string, any>} What queues that are watched closely have: waits and consumers. */
  const closely = new Map();
  /** @type {Set<(time: number, totals: Figures) => void>} */
  const listeners = new Set();
  let watched = "";
  let abort = new AbortController();
  let left = false;

  let isFirst = true;
  const take = (/** @type {any} */ event) => {
    if (isFirst) [event.totals, ...event.queues].forEach(forgetCounted);
    isFirst = false;
    connection.set("live");
    heard.set(Date.now() / 1000);
    for (const figures of event.queues) queues.set(figures.name, figures);
    for (const name of event.removed) queues.delete(name);
    for (const [name, found] of Object.entries(event.consumers || {})) closely.set(name, found);
    totals.set(event.totals);
    attention.set(event.attention);
    latest.set(event);
    for (const listen of listeners) listen(event.time, event.totals);
    tick.set(event.time);
  };

  const run = async (/** @type {AbortController} */ own, /** @type {string} */ path) => {
    while (!own.signal.aborted) {
      try {
        await follow(path, take, own.signal);
      } catch (error) {
        if (own.signal.aborted) return;
        connection.set(error instanceof ApiError ? error.message : String(error));
      }
      if (!own.signal.aborted) await new Promise((done) => setTimeout(done, AGAIN_SECONDS * 1000));
    }
  };

  /** @param {string[]} names @param {{consumers?: boolean}} [options] */
  const watch = (names, { consumers = false } = {}) => {
    const path = pathOf(names, consumers);
    if (path === watched || left) return;
    watched = path;
    abort.abort();
    abort = new AbortController();
    run(abort, path);
  };

  onLeave(() => {
    left = true;
    abort.abort();
  });
  return {
    totals,
    attention,
    latest,
    tick,
    queues,
    closely,
    watch,
    listen: (/** @type {(time: number, totals: Figures) => void} */ listener) => listeners.add(listener),
  };
}

/** What is counted only while somebody watches is not known in the first second. @param {Figures} figures */
function forgetCounted(figures) {
  for (const field of ["delivered", "retried", "failed"]) figures[field] = null;
}

/** @param {string[]} names @param {boolean} consumers */
function pathOf(names, consumers) {
  if (!names.length) return "/v1/stats/stream?queues=false";
  const chosen = [];
  let size = 0;
  for (const name of names) {
    size += encodeURIComponent(name).length + 7;
    if (size > TARGET_BYTES) break;
    chosen.push(name);
  }
  return url("/v1/stats/stream", { queue: chosen, consumers });
}

/**
 * The last hour of all queues together, or of one.
 * @param {any} document the answer of `/v1/stats?history=true`
 * @param {string} [queue]
 * @returns {Series}
 */
export function seriesOf(document, queue) {
  const { totals, queues } = document.history;
  const found = queue === undefined ? totals : Object.hasOwn(queues, queue) && queues[queue];
  return { times: [...document.history.times], values: structuredClone(found || {}) };
}

/**
 * Add one moment to a series, and drop what is older than an hour.
 * @param {Series} series
 * @param {number} time
 * @param {Figures} figures
 */
export function extend(series, time, figures) {
  const before = series.times.length;
  series.times.push(time);
  for (const field of FIELDS) {
    const values = (series.values[field] ??= Array(before).fill(null));
    values.push(figures[field] ?? null);
  }
  const old = series.times.findIndex((each) => each > time - KEPT_SECONDS);
  if (old > 0) {
    series.times.splice(0, old);
    Object.values(series.values).forEach((values) => values.splice(0, old));
  }
}

/** Figures with the last hour. @param {Record<string, any>} query */
export const figures = (query) => api(url("/v1/stats", query));
