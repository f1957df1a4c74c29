/** Who uses this tab, and which pages are worth offering to them. The broker decides; this only spares a refusal. */

import { api } from "./api.js";
import { signal } from "./reactive.js";

/**
 * @typedef {{name: string|null, kind: string, scopes: string[], verbs: string[], administrator: boolean,
 *   reads_audit: boolean}} Identity
 */

/** What the broker knows of the user; null until it has said so. */
export const identity = signal(/** @type {Identity|null} */ (null));

export const learnIdentity = () =>
  api("/v1/identity").then(
    (found) => identity.set(found),
    () => identity.set(null),
  );

/** @param {{needs?: string}} page */
export function isOffered({ needs }) {
  const who = identity();
  if (!who || !needs || who.administrator) return true;
  return needs === "audit" ? who.reads_audit : who.verbs.includes(needs);
}

/** @param {Identity|null} who */
export const nameOf = (who) => who?.name || (who?.kind === "anonymous" ? "Anybody" : "Token");
