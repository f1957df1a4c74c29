/** Publish: one message by hand, new or like another one. */

import { api } from "../lib/api.js";
import { bodyFrom, textOf, wrongJson } from "../lib/body.js";
import { cli, curl, literal, python } from "../lib/code.js";
import { h } from "../lib/dom.js";
import { action, asCode, ask, attempt, field, heading, messageLink, note, valuesOf } from "../lib/parts.js";

/** @param {any} route */
export const load = async ({ query }) => (query.from ? api(`/v1/messages/${encodeURIComponent(query.from)}`) : {});

/** @param {any} route @param {any} like */
export function page({ query }, like) {
  const binary = like.message_base64 !== undefined;
  const form = /** @type {HTMLFormElement} */ (
    h(
      "form",
      { class: "form", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
      field(
        "Queue",
        { name: "queue", value: query.queue || (like.topics?.length ? "" : like.queue) || "" },
        "A queue that exists; or leave it empty and name topics.",
      ),
      field("Topics", {
        name: "topics",
        value: like.topics?.join(", ") || "",
        placeholder: "fruit.sweet, food.healthy",
      }),
      field(
        "Content type",
        { name: "mimeType", value: like.mimeType || "" },
        "Empty: JSON if the body is JSON, else text.",
      ),
      field("Object", { name: "object", value: like.key ? like.object || "" : "" }),
      field("Key", { name: "key", value: like.key || "" }),
      field("Priority", { name: "priority", type: "number", min: 0, value: like.priority || "" }),
      field("Delay in seconds", { name: "delay", type: "number", min: 0, step: "any" }),
      field("Expires after seconds", { name: "expires", type: "number", min: 0, step: "any" }),
      field("Headers as JSON", {
        name: "headers",
        value: query.from ? JSON.stringify({ ...like.headers, "caused-by": like.id }) : "",
        placeholder: '{"trace": "7f"}',
      }),
      h(
        "div",
        { class: "wide" },
        field(binary ? "Body in base64" : "Body", {
          name: binary ? "message_base64" : "message",
          rows: 12,
          value: binary ? like.message_base64 : textOf(like) || "",
        }),
      ),
    )
  );
  const publish = async () => {
    const wanted = attemptRequest(form);
    if (!wanted) return;
    const wrong = wrongJson(wanted.json.message, wanted.json.mimeType);
    const text =
      wrong &&
      h(
        "p",
        { class: "soon", role: "alert" },
        `The body looks like JSON, but is not: ${wrong}. It would be sent as text.`,
      );
    if (
      !(await ask({
        title: `Publish to ${wanted.target}?`,
        text,
        act: wrong ? "Publish as text" : "Publish",
        back: wrong ? "Correct it" : "Cancel",
        code: () => codeOf(wanted),
      }))
    )
      return;
    await attempt(async () => {
      const receipt = await api(wanted.path, { method: "POST", json: wanted.json });
      note(
        receipt.state === "U"
          ? "Unchanged: logged, not delivered"
          : h("span", {}, "Published ", messageLink(receipt.id)),
      );
    });
  };
  return [
    heading(
      "Publish",
      asCode(() => codeOf(requestOf(form))),
    ),
    form,
    h("div", { class: "actions" }, action("Publish", publish, { class: "primary" })),
  ];
}

/** @param {HTMLFormElement} form */
function attemptRequest(form) {
  try {
    return requestOf(form);
  } catch (error) {
    note(error, "failed");
    return null;
  }
}

/** @param {HTMLFormElement} form */
function requestOf(form) {
  const { queue, topics, message, headers, priority, delay, expires, ...others } = /** @type {Record<string, any>} */ (
    valuesOf(form)
  );
  /** @type {Record<string, any>} */
  const json = { ...others };
  if (topics && !queue)
    json.topics = String(topics)
      .split(",")
      .map((each) => each.trim())
      .filter(Boolean);
  if (headers) json.headers = JSON.parse(headers);
  for (const [name, value] of Object.entries({ priority, delay, expires })) if (value) json[name] = Number(value);
  if (message !== undefined) json.message = bodyFrom(message, others.mimeType);
  else if (!json.message_base64) json.message = "";
  if (!queue && !json.topics) throw new Error("Name a queue or a topic.");
  const path = queue ? `/v1/queues/${encodeURIComponent(queue)}/messages` : "/v1/publish";
  return { path, json, target: queue || json.topics.join(", "), queue };
}

/** An option of `penstock publish`. @param {string} name @param {any} value @returns {string[]} */
function flagOf(name, value) {
  if (value === undefined || value === "") return [];
  if (name === "headers") return Object.entries(value).map(([key, each]) => `--header=${key}=${each}`);
  return [value].flat().map((each) => `--${name}=${each}`);
}

/** @param {ReturnType<typeof requestOf>} request */
function codeOf({ path, json, queue }) {
  const { message, message_base64: bytes, topics, mimeType, ...others } = json;
  const options = Object.entries({ topics, ...others })
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `, ${name}=${literal(value)}`);
  const body = bytes === undefined ? literal(message) : `base64.b64decode(${literal(bytes)})`;
  const flags = Object.entries({ ...others, topic: topics, type: mimeType }).flatMap(([name, value]) =>
    flagOf(name, value),
  );
  return {
    cli:
      bytes === undefined
        ? cli(
            "publish",
            ...(queue ? [queue] : []),
            typeof message === "string" ? message : JSON.stringify(message),
            ...flags,
          )
        : undefined,
    curl: curl("POST", path, json),
    python:
      (bytes === undefined ? "" : "import base64\n") +
      python(`client.publish(${literal(queue || null)}, ${body}${options.join("")})`),
  };
}
