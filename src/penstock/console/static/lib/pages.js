/**
 * Every page: its address, its file, its label, the group that it is listed in, and the key that opens it after `g`.
 * `under`: listed with
 * another. `needs`: what a token must allow to see anything there.
 */

/**
 * @type {{name: string, file: string, label: string, group?: string, key?: string, under?: string, needs?: string}[]}
 */
export const PAGES = [
  { name: "", file: "overview", label: "Overview", group: "Work", key: "o" },
  { name: "queues", file: "queues", label: "Queues", group: "Work", key: "q" },
  { name: "dead-letters", file: "dead_letters", label: "Dead letters", group: "Work", key: "d" },
  { name: "consumers", file: "consumers", label: "Consumers", group: "Work", key: "u" },
  { name: "schedules", file: "schedules", label: "Schedules", group: "Work", key: "c" },
  { name: "search", file: "search", label: "Search", group: "Messages", key: "s", needs: "read" },
  { name: "messages", file: "message", label: "Message", under: "search" },
  { name: "publish", file: "publish", label: "Publish", group: "Messages", key: "p", needs: "publish" },
  { name: "events", file: "events", label: "Events", group: "Messages", key: "e", needs: "read" },
  { name: "topics", file: "topics", label: "Topics", group: "Messages", key: "t" },
  { name: "objects", file: "objects", label: "Objects", group: "Messages", key: "b", needs: "read" },
  { name: "lake", file: "lake", label: "Lake", group: "Messages", key: "l", needs: "read" },
  { name: "connections", file: "connections", label: "Connections", group: "Broker", key: "n" },
  { name: "cluster", file: "cluster", label: "Cluster", group: "Broker", key: "r", needs: "admin" },
  { name: "audit", file: "audit", label: "Audit", group: "Broker", key: "a", needs: "audit" },
  { name: "settings", file: "settings", label: "Settings", group: "Broker", key: ",", needs: "admin" },
  { name: "tokens", file: "tokens", label: "Tokens", under: "settings" },
];
