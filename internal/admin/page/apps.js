// Who uses this sidecar, and what it has left.
import { $, cls, h, keyed, lead, ms, rate, span, text, whole, width } from "./dom.js";

const over = 10_000; // ms: over which rates are taken

const samples = new Map(); // by app: the answers of the last ten seconds, oldest first

// rates are what an app was served and refused a second, and for what mostly.
function rates(process, at, app) {
  const key = `${process} ${app.app}`, mine = samples.get(key) ?? [];
  const refused = Object.values(app.refused).reduce((a, b) => a + b, 0);
  mine.push({ at, served: app.served, refused });
  while (mine.length > 2 && at - mine[1].at >= over) mine.shift();
  samples.set(key, mine);
  const first = mine[0], seconds = (at - first.at) / 1000;
  return seconds > 0 ? { served: (app.served - first.served) / seconds, refused: (refused - first.refused) / seconds } : { served: 0, refused: 0 };
}

export function drawApps(d) {
  const queue = d.apps.reduce((sum, a) => sum + a.waiting, 0), known = new Set(d.apps.map((a) => `${d.process} ${a.app}`));
  for (const key of samples.keys()) if (!known.has(key)) samples.delete(key);
  keyed($("apps").tBodies[0], d.apps, (a) => a.app, (a) => h("tr", {}, h("td", { class: "first" }, a.app || "no name"), h("td", { class: "r" }), h("td", { class: "r" }),
    h("td", { class: "bar" }, h("div", {}, h("div", { class: "meter", "aria-hidden": "true" }, h("i", { class: "waiting" })), h("span", { class: "num" }))), h("td", { class: "r" }), h("td", { class: "r" }), h("td", { class: "r wide" })), (row, a) => {
    const [, calls, used, cell, waiting, refused, p99] = row.children, now = rates(d.process, d.at_ms, a);
    text(calls, rate(now.served));
    text(used, whole(a.in_use));
    const share = cell.firstChild;
    width(share.firstChild.firstChild, queue ? a.waiting / queue : 0);
    text(share.lastChild, queue ? `${Math.round((100 * a.waiting) / queue)} %` : "");
    text(waiting, whole(a.waiting));
    cls(waiting, `r ${a.waiting > 0 ? "warn" : ""}`);
    text(refused, rate(now.refused));
    cls(refused, `r ${now.refused > 0 ? "warn" : ""}`);
    refused.title = Object.entries(a.refused).map(([why, n]) => `${why}: ${whole(n)}`).join(", ");
    text(p99, ms(a.wait_p99_ms));
  });
  text($("apps-sum"), d.apps_more ? `and ${whole(d.apps_more)} more` : "");
  $("apps").hidden = d.apps.length === 0;
  $("apps-none").hidden = d.apps.length > 0;
}

const mib = (bytes) => `${whole(bytes / 1048576)} MiB`;

// facts are the lines about the process: name, value, colour.
export function facts(d) {
  const from = d.nodes.discovery, m = d.memory, failed = from.failures > 0;
  const age = from.answered ? `answered ${span(d.at_ms - Date.parse(from.answered))} ago` : "no answer yet";
  return [
    ["Host", d.host || "unknown", ""],
    ...(d.pod ? [["Pod", d.pod, ""]] : []),
    ["Version", d.version, ""],
    ["Database", d.database, ""],
    ["Discovery", `${from.mode}, ${age}${failed ? `, failed ${from.failures} times since` : ""}`, failed ? "warn" : ""],
    ["Retry budget", `${whole(Math.floor(d.retries.left))} of ${whole(d.retries.burst)} retries`, d.retries.left < 1 ? "warn" : ""],
    ["Memory", m.limit ? `${mib(m.used)} of ${mib(m.limit)}${m.tight ? ", short: large work is refused" : ""}` : "no limit is known, so the guard is off", m.tight ? "bad" : ""],
    ["Requests in memory", m.requests.most ? `${mib(m.requests.held)} of ${mib(m.requests.most)}` : "no limit", ""],
  ];
}

export function drawFacts(d) {
  lead($("docs"), d.docs);
  keyed($("facts"), facts(d), (f) => f[0], (f) => h("div", {}, h("dt", {}, f[0]), h("dd")), (el, f) => {
    text(el.lastChild, f[1]);
    cls(el.lastChild, f[2]);
  });
}
