/** Every page: its address, its file, its label, and the key that opens it after `g`. `under`: listed with another. */

/** @type {{name: string, file: string, label: string, key?: string, under?: string}[]} */
export const PAGES = [
  { name: "", file: "overview", label: "Overview", key: "o" },
  { name: "queues", file: "queues", label: "Queues", key: "q" },
];
