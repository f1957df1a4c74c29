/**
 * Values that change, and functions that run again when they do.
 *
 * An effect runs once, remembers which signals it read, and runs again after one of them was set. Effects belong to
 * the page, or to the effect, that made them, and end with it. What is made after an `await` belongs to nobody: so a
 * page awaits its data in `load`, and is drawn in one go.
 */

/** @type {Effect|null} */
let running = null;
/** @type {Array<() => void>|null} */
let scope = null;
/** @type {Set<Effect>} */
const due = new Set();
let isPlanned = false;

class Effect {
  /** @param {() => void} work */
  constructor(work) {
    this.work = work;
    /** @type {Set<Set<Effect>>} */
    this.sources = new Set();
    /** @type {Array<() => void>} What it began when it ran last. */
    this.begun = [];
  }

  run() {
    this.forget();
    const before = [running, scope];
    [running, scope] = [this, this.begun];
    try {
      this.work();
    } finally {
      [running, scope] = /** @type {any} */ (before);
    }
  }

  forget() {
    this.begun.splice(0).forEach((end) => end());
    for (const readers of this.sources) readers.delete(this);
    this.sources.clear();
  }

  end() {
    this.forget();
    due.delete(this);
  }
}

/**
 * Run the effects that are due, in turn, before the browser paints. One that has ended meanwhile does not run, and one
 * that fails stops no other.
 */
function flush() {
  isPlanned = false;
  const round = [...due];
  for (const effect of round) {
    if (!due.delete(effect)) continue; // Its parent has run, and ended it.
    try {
      effect.run();
    } catch (error) {
      reportError(error);
    }
  }
  if (due.size) plan(); // What these have set.
}

function plan() {
  if (!isPlanned) queueMicrotask(flush);
  isPlanned = true;
}

/**
 * A value that can be read by calling it, and set with `set`.
 * @template T
 * @param {T} value
 * @returns {(() => T) & {set: (next: T) => void, peek: () => T}}
 */
export function signal(value) {
  /** @type {Set<Effect>} */
  const readers = new Set();
  const read = () => {
    if (running) {
      readers.add(running);
      running.sources.add(readers);
    }
    return value;
  };
  return Object.assign(read, {
    peek: () => value,
    set: (/** @type {T} */ next) => {
      if (Object.is(next, value)) return;
      value = next;
      for (const reader of readers) due.add(reader);
      if (due.size) plan();
    },
  });
}

/**
 * Run now, and again whenever a signal that it read was set.
 * @param {() => void} work
 */
export function effect(work) {
  const made = new Effect(work);
  scope?.push(() => made.end());
  made.run();
}

/**
 * Call when the page is left.
 * @param {() => void} work
 */
export function onLeave(work) {
  scope?.push(work);
}

/**
 * Run `work` with a scope of its own. Returns what it returned, and how to end everything it began.
 * @template T
 * @param {() => T} work
 * @returns {{value: T, dispose: () => void}}
 */
export function scoped(work) {
  const before = scope;
  /** @type {Array<() => void>} */
  const own = [];
  scope = own;
  try {
    return { value: work(), dispose: () => own.splice(0).forEach((end) => end()) };
  } finally {
    scope = before;
  }
}

/**
 * Do something every so often, until the page is left. Hidden pages rest.
 * @param {number} seconds
 * @param {() => void} work
 */
export function every(seconds, work) {
  const timer = setInterval(() => document.hidden || work(), seconds * 1000);
  onLeave(() => clearInterval(timer));
}
