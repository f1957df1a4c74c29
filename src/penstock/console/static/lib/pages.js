/** Every page: its address, its file, its label, and the key that opens it after `g`. `under`: listed with another. */

/** @type {{name: string, file: string, label: string, key?: string, under?: string}[]} */
export const PAGES = [
  { name: "", file: "overview", label: "Overview", key: "o" },
  { name: "queues", file: "queues", label: "Queues", key: "q" },
  { name: "consumers", file: "consumers", label: "Consumers", key: "u" },
  { name: "search", file: "search", label: "Search", key: "s" },
  { name: "messages", file: "message", label: "Message", under: "search" },
  { name: "publish", file: "publish", label: "Publish", key: "p" },
  { name: "dead-letters", file: "dead_letters", label: "Dead letters", key: "d" },
  { name: "schedules", file: "schedules", label: "Schedules", key: "c" },
  { name: "topics", file: "topics", label: "Topics", key: "t" },
  { name: "objects", file: "objects", label: "Objects", key: "b" },
  { name: "events", file: "events", label: "Events", key: "e" },
  { name: "connections", file: "connections", label: "Connections", key: "n" },
  { name: "cluster", file: "cluster", label: "Cluster", key: "r" },
  { name: "lake", file: "lake", label: "Lake", key: "l" },
  { name: "audit", file: "audit", label: "Audit", key: "a" },
  { name: "settings", file: "settings", label: "Settings", key: "," },
  { name: "tokens", file: "tokens", label: "Tokens", under: "settings" },
];
