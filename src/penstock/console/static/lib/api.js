/** Requests to the broker, with the token of the user. The token is kept until the tab is closed, and nowhere else. */

import { signal } from "./reactive.js";

const KEY = "penstock.token";

/** Set when the broker wants a token; the frame then asks for one. */
export const wantsToken = signal(false);

/** What the page knows of the broker from the start. */
export const facts = JSON.parse(/** @type {HTMLMetaElement} */ (document.querySelector("meta[name=penstock]")).content);

/** Why the token was refused. */
export const refusal = signal("");

export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {string} [code] */
  constructor(status, message, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** @param {string} token */
export function setToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
  wantsToken.set(false);
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/**
 * The answer to a request, as JSON; null if it has no body.
 * @param {string} path
 * @param {{method?: string, json?: any, body?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal}}
 * [options]
 * @returns {Promise<any>}
 */
export async function api(path, options = {}) {
  const answer = await send(path, options);
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

/**
 * The answer itself. Throws `ApiError` with the broker's own sentence.
 * @param {string} path
 * @param {{method?: string, json?: any, body?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal}}
 * options
 */
export async function send(path, { method = "GET", json, body, headers = {}, signal: abort } = {}) {
  const token = sessionStorage.getItem(KEY);
  const fields = { ...headers };
  if (token) fields.Authorization = `Bearer ${token}`;
  if (json !== undefined) fields["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: fields,
      body: json === undefined ? body : JSON.stringify(json),
      signal: abort,
      cache: "no-store",
    });
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new ApiError(0, "The broker does not answer. Is it running?");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let told;
  try {
    told = JSON.parse(text);
  } catch {
    told = { error: text };
  }
  if (answer.status === 401) {
    refusal.set(told.error || "it is not known");
    wantsToken.set(true);
  }
  throw new ApiError(answer.status, told.error || answer.statusText, told.code);
}

/**
 * Follow a stream of Server-Sent Events; `take` gets the JSON of each. Ends when `abort` does, or the broker does.
 * (`EventSource` cannot send a token.)
 * @param {string} path
 * @param {(event: any) => void} take
 * @param {AbortSignal} abort
 */
export async function follow(path, take, abort) {
  const answer = await send(path, { headers: { Accept: "text/event-stream" }, signal: abort });
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = events.pop() || "";
    for (const event of events) {
      const data = event
        .split("\n")
        .filter((line) => line.startsWith("data: "))
        .map((line) => line.slice(6));
      if (data.length) take(JSON.parse(data.join("\n")));
    }
  }
}

/**
 * A path with its query. Empty values are left out; lists are repeated.
 * @param {string} path
 * @param {Record<string, any>} query
 */
export function url(path, query) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of [value].flat()) {
      if (each !== undefined && each !== null && each !== "" && each !== false) given.append(name, String(each));
    }
  }
  return given.size ? `${path}?${given}` : path;
}
