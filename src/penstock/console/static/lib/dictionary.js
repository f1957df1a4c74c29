/** Tables that are asked for any text, also from a broker or an address: they have their own entries and no others. */

/**
 * Without the members of every object: `constructor` is no tone, no picture and no span of time.
 * @template T
 * @param {Record<string, T>} entries
 * @returns {Record<string, T>}
 */
export const dictionary = (entries) => Object.assign(Object.create(null), entries);
