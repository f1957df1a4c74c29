/** Lake: how to ask about more than the last hour. */

import { h } from "../lib/dom.js";
import { copyable, heading } from "../lib/parts.js";

export function page() {
  return [
    heading("Lake"),
    h("p", {}, "The broker keeps the last hour in memory. Everything older is in the tables of the lake, which the pipeline fills from the Event Log. The lake is files, not part of the broker, so this page cannot read it; these commands can."),
    copyable("A broker with a pipeline that fills a lake", "penstock up --data ./data --lake ./lake"),
    copyable("Messages a minute, by queue", 'penstock sql "select queue, minute, messages_in, messages_out, depth from queue_minutes order by minute" --plot'),
    copyable("How messages ended", 'penstock sql "select state, count(*) from messages group by state" --plot'),
    copyable("Python", 'import penstock\n\nlake = penstock.lake("./lake")\nprint(lake.sql("select * from queue_minutes order by minute desc limit 60").to_pandas())'),
  ].map((each) => (each instanceof Element ? each : h("div", {}, each)));
}
