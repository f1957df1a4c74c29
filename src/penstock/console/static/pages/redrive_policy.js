/** The redrive policy in a form: after how many deliveries a message has failed, and to which queue it moves then. */

import { h, show } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { tick } from "../lib/parts.js";

const MOST = 2 ** 31 - 1;
const WHY =
  "A message that fails so often moves to that queue, its dead-letter queue. If max_attempts is set too, " +
  "the lower number counts; messages then still move, and are not dropped. Both fields empty: no dead-letter queue.";

/** @param {any} policy @param {string[]} queues */
export function policyFields(policy, queues) {
  const most = h("input", {
    class: "most",
    type: "number",
    min: 1,
    max: MOST,
    step: 1,
    value: policy?.max_receives ?? "",
  });
  const target = /** @type {HTMLInputElement} */ (
    h("input", {
      class: "target",
      list: "dead-letter-queues",
      value: policy?.dead_letter_queue ?? "",
      autocomplete: "off",
      spellcheck: "false",
    })
  );
  const known = new Set(queues);
  const create = h("div", { class: "create" });
  const offer = () => {
    const name = target.value.trim();
    show(
      create,
      name && !known.has(name) ? tick(`Create ${name}`, { value: name }, "There is no queue of this name yet.") : null,
    );
  };
  target.addEventListener("input", offer);
  return h(
    "fieldset",
    { class: "policy" },
    h("legend", {}, "redrive_policy"),
    h("label", { class: "inline" }, "Give up after", most, "deliveries"),
    h("label", { class: "inline" }, "and move to", target),
    h(
      "datalist",
      { id: "dead-letter-queues" },
      queues.map((name) => h("option", { value: name })),
    ),
    create,
    h("small", {}, WHY),
  );
}

/** @param {HTMLElement} form @returns {HTMLInputElement[]} */
const fieldsIn = (form) =>
  [".policy .most", ".policy .target", ".policy .create input"].map(
    (each) => /** @type {HTMLInputElement} */ (form.querySelector(each)),
  );

/** @param {HTMLElement} form */
export function policyIn(form) {
  const [most, target] = fieldsIn(form);
  return most.value && target.value.trim()
    ? { max_receives: Number(most.value), dead_letter_queue: target.value.trim() }
    : null;
}

/** The queue that is to be created for it; empty if none is. @param {HTMLElement} form */
export function queueToCreate(form) {
  const create = fieldsIn(form)[2];
  return create?.checked ? create.value : "";
}

/**
 * Whether both fields are filled, or none, and the queue is there or will be. Points to the field that is wrong.
 * @param {HTMLElement} form
 */
export function isPolicyComplete(form) {
  const [most, target, create] = fieldsIn(form);
  most.setCustomValidity(
    target.value.trim() && !most.value ? "After how many deliveries? Or empty the other field too." : "",
  );
  target.setCustomValidity(
    most.value && !target.value.trim()
      ? "To which queue? Or empty the other field too."
      : create && !create.checked
        ? `There is no queue ${target.value.trim()}. Tick that it is to be created, or choose another.`
        : "",
  );
  return most.reportValidity() && target.reportValidity();
}

/** @param {any} policy */
export const policyText = ({ max_receives: most, dead_letter_queue: queue }) =>
  `${queue} after ${count(most)} ${most === 1 ? "delivery" : "deliveries"}`;
