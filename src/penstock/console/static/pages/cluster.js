/** Cluster: which processes there are, who has which shard, what cannot be reached, and what is between shards. */

import { api } from "../lib/api.js";
import { dictionary } from "../lib/dictionary.js";
import { h, show } from "../lib/dom.js";
import { count, duration, plural } from "../lib/format.js";
import { badge, copyable, heading, table } from "../lib/parts.js";
import { every } from "../lib/reactive.js";

const LOOK_SECONDS = 2;
const TONES = dictionary({ drains: "soon", drained: "soon", silent: "bad", gone: "bad" });
const STATES = dictionary({
  serves: "serves",
  waits: "waits",
  drains: "hands over",
  drained: "handed over",
  silent: "silent",
  gone: "gone",
});

/** Figures need all shards; who has them is known anyway. */
const between = () =>
  api("/v1/stats?limit=1").then(
    (found) => ({ couriers: found.couriers || [] }),
    (error) => ({ missing: error.message }),
  );

export const load = async () => {
  const [cluster, figures] = await Promise.all([api("/v1/cluster"), between()]);
  return { ...cluster, ...figures };
};

/** @param {any} _ @param {any} found */
export function page(_, found) {
  const place = h("div", { class: "stack wide" }, sections(found));
  every(LOOK_SECONDS, () =>
    load().then(
      (now) => show(place, sections(now)),
      (error) => show(place, problem("Who serves what is not known", error.message)),
    ),
  );
  return [heading("Cluster"), place];
}

/** @param {any} cluster */
function sections(cluster) {
  if (cluster.shards.length === 1 && cluster.members.length === 1) return alone();
  const kind = cluster.kind === "nodes" ? "node" : "worker";
  const all = cluster.members.length,
    there = cluster.members.filter((/** @type {any} */ each) => each.state !== "gone").length;
  return [
    troubles(cluster, kind),
    h(
      "section",
      {},
      h(
        "h2",
        {},
        `${there < all ? `${there} of ` : ""}${plural(all, kind)}, ${plural(cluster.shards.length, "shard")}`,
      ),
      table("Members", members(cluster.kind, kind), cluster.members),
    ),
    h("section", {}, h("h2", {}, "Who has which shard"), h("ul", { class: "owners" }, owners(cluster, kind))),
    h("section", {}, h("h2", {}, "Between shards"), lags(cluster)),
    h(
      "p",
      { class: "quiet" },
      "As the process that answers sees it. A client may use any of them: what belongs to another one is forwarded.",
    ),
  ];
}

const alone = () =>
  h(
    "div",
    { class: "empty" },
    h(
      "p",
      {},
      "One process serves everything, in one shard. With several workers on a machine, or several brokers " +
        "on a store in PostgreSQL, this page shows who has which shard and what cannot be reached. " +
        "docs/workers.md and docs/cluster.md say when that is worth it.",
    ),
    copyable("shell", "penstock serve --data /var/lib/penstock --workers 4"),
  );

/** @param {string} title @param {string} text */
const problem = (title, text) => h("div", { class: "problem" }, h("h2", { class: "bad" }, title), h("p", {}, text));

/**
 * What needs a person, or some patience: shards by the reason why they cannot be used.
 * @param {any} cluster
 * @param {string} kind
 */
function troubles(cluster, kind) {
  const away = cluster.shards.filter((/** @type {any} */ each) => !each.reachable);
  const byReason = Object.entries(Object.groupBy(away, (/** @type {any} */ each) => reason(cluster, kind, each)));
  return byReason.map(([why, shards]) =>
    problem(
      `${shardNames(/** @type {any[]} */ (shards))} cannot be reached`,
      `${why} Meanwhile requests for queues there are answered as unavailable.`,
    ),
  );
}

/** @param {any[]} shards */
const shardNames = (shards) =>
  `${shards.length === 1 ? "Shard" : "Shards"} ${shards.map((each) => each.shard).join(", ")}`;

/** Why a shard cannot be used from here. @param {any} cluster @param {string} kind @param {any} shard */
function reason(cluster, kind, shard) {
  const owner = cluster.members.find((/** @type {any} */ each) => each.name === shard.owner);
  if (!owner) return "The last owner has stopped or is gone, and no node has taken over yet.";
  const name = `${kind === "node" ? "Node" : "Worker"} ${owner.name}`;
  if (owner.this) return `${name}, which answers here, has just taken over, and reads the log.`;
  if (owner.state === "silent")
    return `${name} does not answer. The supervisor asks what it is doing, kills it and starts it again.`;
  if (kind === "worker" && !owner.linked)
    return `${name} is gone or starting: there is no link to it. The supervisor starts it again.`;
  if (owner.state === "gone")
    return (
      `${name} was last seen ${duration(owner.seen_seconds_ago)} ago. Another node takes over when its ` + `lease ends.`
    );
  if (!owner.linked)
    return (
      `${name} was seen ${duration(owner.seen_seconds_ago)} ago, but there is no link to it: check the ` +
      `network, and its address for links (--advertise).`
    );
  return `${name} does not serve yet what it has taken over.`;
}

/** @param {string} kind of the cluster @param {string} member @returns {import("../lib/parts.js").Column[]} */
const members = (kind, member) => [
  {
    label: member === "node" ? "Node" : "Worker",
    cell: (row) => h("span", { class: "name" }, row.name, row.this && badge("answers here", "accent")),
  },
  { label: "State", cell: (row) => stateBadge(row) },
  { label: "Shards", number: true, cell: (row) => count(row.shards) },
  { label: "Link", cell: (row) => linkWord(row) },
  ...(kind === "nodes"
    ? [
        {
          label: "Seen",
          number: true,
          cell: (/** @type {any} */ row) =>
            row.seen_seconds_ago === null ? "–" : `${duration(row.seen_seconds_ago)} ago`,
        },
      ]
    : []),
  { label: "Address", minor: true, cell: (row) => h("span", { class: "mono" }, row.address) },
];

/** One that left, and has nothing, needs nobody. @param {any} row */
const stateBadge = (row) => badge(STATES[row.state], row.state === "gone" && !row.shards ? "" : TONES[row.state]);

/** @param {any} row */
const linkWord = (row) =>
  row.linked === null
    ? h("span", { class: "zero" }, "–")
    : row.linked
      ? "linked"
      : h("span", { class: row.state === "gone" ? "zero" : "bad" }, "no link");

/** Shards by owner; those of nobody come first. @param {any} cluster @param {string} kind */
function owners({ shards, members: all }, kind) {
  const byOwner = Object.groupBy(shards, (/** @type {any} */ each) => each.owner ?? "");
  const names = Object.keys(byOwner).sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  return names.map((name) => {
    const held = /** @type {any[]} */ (byOwner[name]);
    const member = all.find((/** @type {any} */ each) => each.name === name);
    return h(
      "li",
      { class: "panel" },
      h(
        "h3",
        {},
        name ? `${kind === "node" ? "Node" : "Worker"} ${name}` : "Nobody",
        member?.this && " (answers here)",
      ),
      h(
        "ul",
        { class: "chips", "aria-label": `Shards of ${name || "nobody"}` },
        held.map((each) => h("li", {}, chip(each))),
      ),
    );
  });
}

/** @param {any} shard */
const chip = ({ shard, epoch, reachable }) =>
  badge(`${shard}${epoch ? ` · epoch ${epoch}` : ""}${reachable ? "" : " · not reachable"}`, reachable ? "" : "bad");

/** What waits to be taken to another shard. @param {any} found */
function lags({ couriers, missing }) {
  if (missing) return h("p", { class: "fine" }, `Not known now: ${missing}.`);
  const late = couriers
    .filter((/** @type {any} */ each) => each.lag)
    .sort((/** @type {any} */ one, /** @type {any} */ other) => other.lag - one.lag);
  return table(
    "Between shards",
    [
      { label: "To shard", number: true, cell: (row) => row.shard },
      { label: "From shard", number: true, cell: (row) => row.source },
      { label: "The oldest message waits for", number: true, cell: (row) => duration(row.lag) },
    ],
    late,
    { empty: "No message waits to be taken to another shard." },
  );
}
