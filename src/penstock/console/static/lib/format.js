/** Numbers, times and durations as people read them. */

const WHOLE = new Intl.NumberFormat("en-GB");

/** @param {number|null|undefined} value */
export function count(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  if (value >= 1e7) return `${(value / 1e6).toFixed(1)} M`;
  return WHOLE.format(Math.round(value));
}

/** How many more, or fewer. @param {number|null|undefined} value */
export function change(value) {
  if (value === null || value === undefined) return "–";
  return value > 0 ? `+${count(value)}` : value < 0 ? `−${count(-value)}` : "0";
}

/** Messages a second. @param {number|null|undefined} value */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 10) return value.toFixed(1);
  return count(value);
}

/** @param {number} value */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

/** @param {number|null|undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0) return "0 s";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** How long ago. @param {number|null} since seconds since the epoch @param {number} [now] */
export function age(since, now = Date.now() / 1000) {
  return since ? duration(Math.max(0, now - since)) : "–";
}

/** Seconds since the epoch of RFC 3339 text. @param {string} text */
export const seconds = (text) => Date.parse(text) / 1000;

/** A moment: the time of today, else with its date. @param {string|number|null|undefined} moment */
export function time(moment) {
  if (!moment) return "–";
  const date = new Date(typeof moment === "number" ? moment * 1000 : moment);
  const clock = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? clock : `${day(date)} ${clock}`;
}

/** The zone of all times that are shown: "UTC", "GMT+1". */
export const zone = () =>
  new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" })
    .formatToParts()
    .find((part) => part.type === "timeZoneName")?.value || "";

/** @param {Date} date */
export function day(date) {
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** "1 message", "312 messages". @param {number} number @param {string} word */
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
