/** Elements from plain calls. Text always becomes a text node: nothing that a broker sends is read as markup. */

import { effect } from "./reactive.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element with its attributes and children. An attribute or a child that is a function is kept up to date.
 * `onclick` and the like are listeners; `class`, `disabled` and all others are attributes.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  return /** @type {HTMLElement} */ (fill(document.createElement(tag), attributes, children));
}

/**
 * Like `h`, for SVG.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * @param {Element} element
 * @param {Record<string, any>} attributes
 * @param {any[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (typeof value === "function") effect(() => put(element, name, value()));
    else put(element, name, value);
  }
  for (const child of children.flat(Infinity)) append(element, child);
  return element;
}

/**
 * @param {any} element
 * @param {string} name
 * @param {any} value
 */
function put(element, name, value) {
  if (name === "value" || name === "checked") element[name] = value;
  else if (value === false || value === null || value === undefined) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
}

/**
 * @param {Element} element
 * @param {any} child
 */
function append(element, child) {
  if (typeof child === "function") {
    const place = document.createTextNode("");
    element.append(place);
    /** @type {ChildNode[]} */
    let shown = [place];
    effect(() => {
      const next = nodes(child());
      shown[0].replaceWith(...next);
      shown.slice(1).forEach((node) => node.remove());
      shown = next;
    });
  } else if (child !== null && child !== undefined && child !== false) {
    element.append(child instanceof Node ? child : String(child));
  }
}

/**
 * @param {any} content
 * @returns {ChildNode[]} At least one: an empty text keeps the place.
 */
function nodes(content) {
  const all = [content].flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
  const made = all.map((each) => (each instanceof Node ? each : document.createTextNode(String(each))));
  return /** @type {ChildNode[]} */ (made.length ? made : [document.createTextNode("")]);
}

/**
 * Replace everything in an element.
 * @param {Element} element
 * @param {...any} children
 */
export function show(element, ...children) {
  element.replaceChildren();
  for (const child of children.flat(Infinity)) append(element, child);
}
