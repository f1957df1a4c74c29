/** What the words over columns and figures mean. */

import { dictionary } from "./dictionary.js";

const MEANINGS = dictionary({
  Ready: "Messages that a consumer can take now",
  Leased: "Messages that a consumer holds, and has not settled yet",
  Delayed: "Messages that become ready later",
  Kept: "Messages that are done and stay until their retention ends (keep = all)",
  Waiting: "Consumers that wait for a message",
  Waits: "Requests with which it waits for a message",
  "Longest wait": "How long the oldest ready message has waited",
  Holds: "Messages that it has taken and not settled yet",
  "Time for one": "Half of its messages were settled within this time",
  "Back/min": "Messages a minute that it gave back, or whose lease ran out",
  "Fails/min": "Messages a minute whose deliveries were used up",
  Does: "Whether it works on a message or waits for one",
  Shape: "The members of the body, if it is a JSON object",
  Receives: "How often it was delivered from this queue",
  Unread: "What the broker has sent and the client has not read yet",
  Lake: "Hours to 30 days of a queue, from the tables that the pipeline fills",
  Objects: "The versions of an object, by its key",
  Topics: "Which topics lead to which channels and push endpoints",
});

/** @param {string} word @returns {string|undefined} */
export const meaningOf = (word) => MEANINGS[word];
