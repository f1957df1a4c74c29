/** Tokens: who may do what until when. A secret is shown once, when it is made. */

import { api, hasToken, setToken } from "../lib/api.js";
import { curl, literal, python, sameAs } from "../lib/code.js";
import { h } from "../lib/dom.js";
import { time } from "../lib/format.js";
import { action, asCode, ask, attempt, button, copyable, field, heading, openDialog, table } from "../lib/parts.js";

const SCOPES_HINT =
  "Verbs and names, separated by spaces: publish,consume:orders* read:*. admin alone may do everything.";
const EXPIRES_HINT = "A time such as 2027-01-31T12:00:00Z. Empty: it does not expire.";

/** @param {string} name */
const addressOf = (name) => `/v1/tokens/${encodeURIComponent(name)}`;

export const load = () => api("/v1/tokens?limit=1000");

/** @param {any} _ @param {any} found */
export function page(_, { tokens, total }) {
  const code = asCode(() => ({
    curl: curl("PUT", addressOf("shop"), { scopes: ["publish:orders*"] }),
    python: python(`print(client.tokens.create("shop", ${literal(["publish:orders*"])}).token)`),
  }));
  return [
    heading(
      "Tokens",
      code,
      action("Create a token", () => create(total === 0), { class: "primary" }),
    ),
    h(
      "p",
      { class: "quiet" },
      "A token is an identity: with it, a client may do what its scopes allow. The broker keeps a digest of " +
        "the secret, and shows the secret once.",
    ),
    table("Tokens", COLUMNS, tokens, {
      empty: h(
        "p",
        {},
        "There are no tokens that can be managed here. As soon as there is one, every client needs a token, " +
          "so the first one must be an administrator.",
      ),
    }),
    total > tokens.length ? h("p", { class: "quiet" }, `The first ${tokens.length} of ${total}.`) : null,
  ];
}

/** @type {import("../lib/parts.js").Column[]} */
const COLUMNS = [
  { label: "Name", cell: (row) => h("span", { class: "name" }, row.name) },
  { label: "May", cell: (row) => h("span", { class: "mono value" }, row.scopes.join(" ")) },
  { label: "Expires", minor: true, cell: (row) => (row.expires ? time(row.expires) : "never") },
  { label: "Last used", minor: true, cell: (row) => time(row.last_used) },
  { label: "Created", minor: true, cell: (row) => time(row.created) },
  {
    label: "",
    acts: true,
    cell: (row) =>
      h(
        "div",
        { class: "actions tight" },
        action("Change", () => change(row), named("Change", row)),
        row.certificate ? null : action("Rotate", () => rotate(row), named("Rotate", row)),
        action("Delete", () => remove(row), { class: "plain bad", ...named("Delete", row) }),
      ),
  },
];

/** @param {string} verb @param {any} row */
const named = (verb, row) => ({ "aria-label": `${verb} ${row.name}` });

const again = () => dispatchEvent(new HashChangeEvent("hashchange"));

/** @param {Element} label */
const typedIn = (label) => /** @type {HTMLInputElement} */ (label.querySelector("input")).value.trim();

/** @param {Element} label */
const scopesIn = (label) => typedIn(label).split(/\s+/).filter(Boolean);

/** @param {boolean} isFirst */
async function create(isFirst) {
  const name = field("Name", { name: "name", required: true, autofocus: true });
  const scopes = field("Scopes", { name: "scopes", required: true, value: isFirst ? "admin" : "" }, SCOPES_HINT);
  const expires = field("Expires", { name: "expires", placeholder: "never" }, EXPIRES_HINT);
  const text = isFirst
    ? "It is the first one: from then on every client needs a token. This tab will use the new one."
    : "";
  if (!(await ask({ title: "Create a token", text, fields: [name, scopes, expires], act: "Create" }))) return;
  await attempt(async () => {
    const made = await api(addressOf(typedIn(name)), {
      method: "PUT",
      json: { scopes: scopesIn(scopes), expires: typedIn(expires) || null },
    });
    if (isFirst && !hasToken()) setToken(made.token);
    showSecret(made);
  });
}

/** @param {any} row */
async function change(row) {
  const scopes = field("Scopes", { name: "scopes", required: true, value: row.scopes.join(" ") }, SCOPES_HINT);
  const expires = field("Expires", { name: "expires", value: row.expires || "", placeholder: "never" }, EXPIRES_HINT);
  if (
    !(await ask({
      title: `Change the token ${row.name}`,
      text: "Its secret stays. The change holds at once, also for open connections.",
      fields: [scopes, expires],
      act: "Change",
    }))
  )
    return;
  const json = { scopes: scopesIn(scopes), expires: typedIn(expires) || null };
  if (await attempt(() => api(addressOf(row.name), { method: "PATCH", json }), `${row.name} is changed`)) again();
}

/** @param {any} row */
async function rotate(row) {
  const grace = field("Seconds for which the old secret stays valid", {
    name: "grace",
    type: "number",
    min: 0,
    value: 3600,
  });
  if (!(await ask({ title: `Give ${row.name} a new secret?`, fields: grace, act: "Rotate" }))) return;
  await attempt(async () =>
    showSecret(await api(`${addressOf(row.name)}/rotate`, { method: "POST", json: { grace: Number(typedIn(grace)) } })),
  );
}

/** @param {any} row */
async function remove(row) {
  const text = "Clients with this token are refused at once. This cannot be undone.";
  if (
    !(await ask({
      title: `Delete the token ${row.name}?`,
      text,
      act: "Delete",
      typed: row.name,
      danger: true,
      code: () =>
        sameAs(
          ["tokens", "delete", row.name, "--yes"],
          ["DELETE", addressOf(row.name)],
          `client.tokens.delete(${literal(row.name)})`,
        ),
    }))
  )
    return;
  if (await attempt(() => api(addressOf(row.name), { method: "DELETE" }), `${row.name} is deleted`)) again();
}

/** @param {any} made */
function showSecret(made) {
  const close = button("I have copied it", () => dialog.close(), { class: "primary" });
  const dialog = openDialog(
    h(
      "div",
      {},
      h("h2", { id: "asked" }, `The secret of ${made.name}`),
      h("p", {}, "It is shown once. Nobody can read it later, but it can be rotated."),
      copyable("Secret", made.token),
      h("div", { class: "actions" }, close),
    ),
    again,
  );
}
