/**
 * Small charts, of the last hour if nothing else is asked for. All charts of a page have the same time axis, and point
 * to the same moment.
 */

import { h, svg } from "./dom.js";
import { time as clock } from "./format.js";
import { effect, signal } from "./reactive.js";

const HOUR = 3600;
const DAY = 86400;
const YOUNG_SECONDS = 300;
const GAP_SECONDS = 25; // Samples are ten seconds apart; where one is missing, nothing is drawn.

/** The moment that the pointer is at, in seconds since the epoch; null if it is elsewhere. */
const pointed = signal(/** @type {number|null} */ (null));

/**
 * The path of one line.
 * @param {number[]} times
 * @param {(number|null)[]} values
 * @param {{from: number, top: number, width: number, height: number, seconds?: number, gap?: number}} frame
 */
function pathOf(times, values, { from, top, width, height, seconds = HOUR, gap = GAP_SECONDS }) {
  let path = "";
  let before = -Infinity;
  for (let at = 0; at < times.length; at += 1) {
    const value = values[at];
    if (value === null || value === undefined || times[at] < from) continue;
    const x = ((times[at] - from) / seconds) * width;
    const y = height - (value / top) * height;
    path += `${times[at] - before > gap ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
    before = times[at];
  }
  return path;
}

/**
 * The times in which no line has a value, as one area.
 * @param {number[]} times
 * @param {(number|null)[][]} columns
 * @param {{from: number, width: number, height: number, seconds: number, gap: number}} frame
 */
function gapsOf(times, columns, { from, width, height, seconds, gap }) {
  const measured = times.filter(
    (each, at) => each >= from && columns.some((column) => column[at] !== null && column[at] !== undefined),
  );
  const moments = [from, ...measured, from + seconds];
  const x = (/** @type {number} */ moment) => (((moment - from) / seconds) * width).toFixed(1);
  return moments
    .map((moment, at) =>
      at && moment - moments[at - 1] > gap
        ? `M${x(moments[at - 1])} 0H${x(moment)}V${height}H${x(moments[at - 1])}Z`
        : "",
    )
    .join("");
}

/** How long a time is shown: an hour, or since the first value if the broker is young. @param {number[]} times */
const spanOf = (times) => Math.min(HOUR, Math.max(YOUNG_SECONDS, (times.at(-1) || 0) - (times[0] || 0)));

/** A round number at or above the highest value. @param {number} highest @param {number} least */
function roundUp(highest, least) {
  if (highest <= least) return least;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= highest) || highest;
}

/** @param {(number|null)[][]} columns */
const highestOf = (columns) =>
  columns.reduce((most, values) => values.reduce((best, value) => Math.max(best || 0, value || 0), most) || 0, 0);

/**
 * A line without axes, for a table or a tile.
 * @param {() => {times: number[], values: (number|null)[]}} read
 * @param {string} label what it shows, for people who do not see it
 */
export function sparkline(read, label) {
  const width = 120;
  const height = 24;
  const line = svg("path", { class: "line" });
  effect(() => {
    const { times, values } = read();
    const top = highestOf([values]) || 1;
    const seconds = spanOf(times);
    const from = (times.at(-1) || 0) - seconds;
    line.setAttribute("d", pathOf(times, values, { from, top, width, height: height - 2, seconds }));
  });
  return svg(
    "svg",
    {
      class: "spark",
      viewBox: `0 -1 ${width} ${height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    line,
  );
}

/**
 * A chart with a scale, a legend and the values of the moment that is pointed at.
 * @param {{title: string, lines: {field: string, label: string, class: string}[], format: (value: any) => string,
 *          read: () => import("./live.js").Series, least?: number, seconds?: number, gap?: number}} options
 * `least`: the scale goes at least so far. `seconds`: how long a time is shown; by default the last hour. `gap`: where
 * so much time is missing, nothing is drawn.
 */
export function chart({ title, lines, format, read, least = 1, seconds, gap = GAP_SECONDS }) {
  const [width, height] = [600, 120];
  const paths = lines.map((line) => svg("path", { class: `line ${line.class}` }));
  const unmeasured = svg("path", { class: "unmeasured" }, svg("title", {}, "Not measured"));
  const rule = svg("line", { class: "rule", y1: 0, y2: height });
  const highest = h("span", { class: "scale" });
  const shaded = h("span", {});
  const began = h("span", {});
  const ended = h("span", {}, "now");
  const middle = h("span", {});
  let from = 0;
  let span = HOUR;
  effect(() => {
    const { times, values } = read();
    const columns = lines.map((line) => values[line.field] || []);
    const top = roundUp(highestOf(columns), least);
    span = seconds ?? spanOf(times);
    from = (times.at(-1) || Date.now() / 1000) - span;
    columns.forEach((column, at) =>
      paths[at].setAttribute("d", pathOf(times, column, { from, top, width, height, seconds: span, gap })),
    );
    const gaps = gapsOf(times, columns, { from, width, height, seconds: span, gap });
    unmeasured.setAttribute("d", gaps);
    shaded.textContent = gaps && "shaded: not measured";
    highest.textContent = format(top);
    const label = (/** @type {number} */ moment) => clock(moment).slice(span > DAY ? 0 : -8, -3);
    began.textContent = label(from);
    middle.textContent = label(from + span / 2);
  });
  effect(() => {
    const moment = pointed();
    rule.setAttribute("visibility", moment === null ? "hidden" : "visible");
    const x = moment === null ? 0 : ((moment - from) / span) * width;
    rule.setAttribute("x1", String(x));
    rule.setAttribute("x2", String(x));
    ended.textContent = moment === null ? "now" : clock(moment);
  });
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
    unmeasured,
    [0, 0.5, 1].map((part) => svg("line", { class: "grid", x1: 0, x2: width, y1: part * height, y2: part * height })),
    paths,
    rule,
  );
  const point = (/** @type {PointerEvent} */ event) => {
    const box = drawing.getBoundingClientRect();
    pointed.set(from + ((event.clientX - box.left) / box.width) * span);
  };
  const plot = h(
    "div",
    { class: "plot", onpointermove: point, onpointerleave: () => pointed.set(null) },
    highest,
    drawing,
  );
  const legend = lines.map((line) =>
    h(
      "span",
      { class: `key ${line.class}` },
      line.label,
      " ",
      h("b", {}, () => format(valueAt(read(), line.field, gap))),
    ),
  );
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, title, h("span", { class: "legend" }, legend)),
    plot,
    h("div", { class: "axis" }, began, middle, ended),
    h("div", { class: "quiet" }, shaded),
  );
}

/**
 * The value at the moment that is pointed at, else the latest.
 * @param {import("./live.js").Series} series
 * @param {string} field
 * @param {number} gap
 */
function valueAt({ times, values }, field, gap) {
  const moment = pointed();
  const column = values[field] || [];
  if (moment === null) return column.at(-1) ?? null;
  const at = times.findIndex((each) => each >= moment);
  return at < 0 || times[at] - moment > gap ? null : (column[at] ?? null);
}
