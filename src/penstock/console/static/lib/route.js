/** The address of a page: `#/queues/orders?state=ready`. Every view can be linked, and the browser's back works. */

/**
 * @typedef {{path: string[], query: Record<string, string>}} Route
 * @returns {Route}
 */
export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}

/**
 * A part of an address that somebody has written by hand may not be encoded: then it is what it says.
 * @param {string} part
 */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * @param {string} path
 * @param {Record<string, any>} [query]
 */
export function hashOf(path, query = {}) {
  const given = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null),
  );
  return `#${path}${given.size ? `?${given}` : ""}`;
}

/**
 * Go to a page. `quiet`: only the address changes, and the page stays as it is.
 * @param {string} path
 * @param {Record<string, any>} [query]
 * @param {{quiet?: boolean}} [options]
 */
export function navigate(path, query = {}, { quiet = false } = {}) {
  const hash = hashOf(path, query);
  if (quiet) history.replaceState(null, "", hash);
  else location.hash = hash;
}
