/** The same request from a shell and from Python. Tokens are never copied: programs take them from the environment. */

import { hasToken } from "./api.js";

/** @param {string} text */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/**
 * @param {string} method
 * @param {string} path
 * @param {any} [json]
 */
export function curl(method, path, json) {
  const parts = ["curl"];
  if (method !== "GET" && !(method === "POST" && json !== undefined)) parts.push("-X", method);
  if (hasToken()) parts.push('-H "Authorization: Bearer $PENSTOCK_TOKEN"');
  parts.push(quoted(location.origin + path));
  if (json !== undefined) parts.push("-d", quoted(JSON.stringify(json)));
  return parts.join(" ");
}

/** A program with a client. @param {...string} lines */
export function python(...lines) {
  return [
    "from penstock import Client",
    "",
    `with Client(${JSON.stringify(location.origin)}) as client:`,
    ...lines.map((line) => `    ${line}`),
  ].join("\n");
}

/** JSON as Python writes it. @param {any} value @returns {string} */
export function literal(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

/** A command of ours. @param {...string} words */
export function cli(...words) {
  const plain = (/** @type {string} */ word) => (/^[\w@%+=:,./*-]+$/.test(word) ? word : quoted(word));
  const where =
    location.origin === "http://127.0.0.1:7843" || location.origin === "http://localhost:7843"
      ? []
      : ["--url", location.origin];
  return ["penstock", ...words, ...where].map(plain).join(" ");
}

/**
 * One request, as a command of ours, as curl and in Python.
 * @param {string[]} words of the command
 * @param {[string, string, any?]} request method, path and document
 * @param {string} call of the client
 */
export const sameAs = (words, [method, path, json], call) => ({
  cli: cli(...words),
  curl: curl(method, path, json),
  python: python(call),
});
