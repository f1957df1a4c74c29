/** Delete messages: those that were chosen, or all that match; asked first, with what will be gone, and counted. */

import { api, url } from "./api.js";
import { previews } from "./body.js";
import { cli, curl, literal, python } from "./code.js";
import { h, show } from "./dom.js";
import { count, plural } from "./format.js";
import { ask, attempt, button, note } from "./parts.js";

const AT_ONCE = 6; // Requests, as a browser sends them side by side.
const FOUND_AT_ONCE = 1000;
const MANY = 1_000_000;

/**
 * @typedef {{query: Record<string, any>, rows: any[], isAll: boolean, total: number|null}} Choice what was chosen of a
 * list
 */

/** What a filter of a redrive says of all that match. @param {Record<string, any>} query */
export const filterOf = ({ queue, ...filter }) =>
  Object.fromEntries(Object.entries(filter).filter(([, value]) => value));

/**
 * Delete what was chosen, after a question. Returns whether anybody wanted that.
 * @param {Choice} choice
 * @param {Element} progress
 */
export async function remove(choice, progress) {
  const { query, rows, isAll, total } = choice;
  const title = isAll
    ? `Delete ${total ? `all ${plural(total, "message")}` : "all messages"} that match in ${query.queue}?`
    : `Delete ${plural(rows.length, "message")}?`;
  const text = [
    h("p", {}, "This cannot be undone. A message that a consumer holds is not deleted."),
    previews(rows, isAll ? (total ?? rows.length + 1) : rows.length),
  ];
  const typed = isAll ? query.queue : undefined;
  if (!(await ask({ title, text, act: "Delete", danger: true, typed, code: () => deletion(choice) }))) return false;
  const stop = new AbortController();
  const done = { deleted: 0, kept: 0, why: "" };
  const report = () =>
    show(
      progress,
      h(
        "span",
        { class: "actions" },
        `${plural(done.deleted, "message")} deleted so far`,
        button("Stop deleting", () => stop.abort()),
      ),
    );
  await attempt(async () => {
    let cursor = "";
    do {
      const found = isAll
        ? await api(url("/v1/search", { ...query, bodies: "false", limit: FOUND_AT_ONCE, cursor }))
        : { messages: rows, next: "" };
      cursor = found.next;
      await deleteEach(
        found.messages.map((/** @type {any} */ row) => row.id),
        done,
        stop.signal,
        report,
      );
    } while (cursor && !stop.signal.aborted);
  });
  show(progress);
  note(
    `${plural(done.deleted, "message")} deleted${done.kept ? `; ${count(done.kept)} not: ${done.why}` : ""}`,
    done.kept ? "failed" : "done",
  );
  return true;
}

/**
 * @param {string[]} ids
 * @param {{deleted: number, kept: number, why: string}} done
 * @param {AbortSignal} signal
 * @param {() => void} report
 */
async function deleteEach(ids, done, signal, report) {
  const left = [...ids];
  const work = async () => {
    for (let id = left.shift(); id && !signal.aborted; id = left.shift()) {
      await api(`/v1/messages/${id}`, { method: "DELETE" }).then(
        () => (done.deleted += 1),
        (error) => ((done.kept += 1), (done.why = error.message)),
      );
      if (done.deleted % 100 === 0) report();
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

/** @param {Choice} choice */
function deletion({ query, rows, isAll }) {
  const { queue, ...filter } = { queue: query.queue, ...filterOf(query) };
  const some = Object.entries({ queue, ...filter })
    .map(([name, value]) => `${name}=${literal(value)}`)
    .join(", ");
  const ids = rows.map((row) => row.id);
  const loop = isAll ? `for message in client.search(${some}, bodies=False):` : `for id in ${literal(ids)}:`;
  const { text = "", ...options } = filter;
  const flags = Object.entries({ queue, ...options, count: MANY }).map(
    ([name, value]) => `--${name.replaceAll("_", "-")}=${value}`,
  );
  const find = cli("search", ...(text ? [text] : []), ...flags, "--json");
  return {
    cli: isAll
      ? `${find} |\n  jq -r .id | xargs ${cli("message", "delete", "--yes")}`
      : cli("message", "delete", "--yes", ...ids),
    curl: isAll
      ? "# Find the ids first:\n" +
        curl("GET", url("/v1/search", { queue, ...filter, bodies: "false", limit: FOUND_AT_ONCE }))
      : ids.map((id) => curl("DELETE", `/v1/messages/${id}`)).join("\n"),
    python: python(loop, `    client.delete_message(${isAll ? "message.id" : "id"})`),
  };
}

/** Delete one message, after a question. @param {any} row */
export const removeOne = (row) =>
  ask({
    title: "Delete this message?",
    text: "This cannot be undone.",
    act: "Delete",
    danger: true,
    code: () => deletion({ query: {}, rows: [row], isAll: false, total: 1 }),
    work: () => api(`/v1/messages/${row.id}`, { method: "DELETE" }),
  }).then((isDone) => (isDone && note("1 message deleted"), isDone));
