// What is wrong, and what happened.
import { $, clock, cls, h, keyed, text } from "./dom.js";

// own are events that only the page saw.
export const own = [];

const lately = 10 * 60_000; // ms: findings that came back within this time are one row with their number
const ofOne = 3; // findings of one code that have a row each; more are summed up

const subject = (f) => `${f.node ?? ""} ${f.app ?? ""}`;

// repeats says how often findings began in the last ten minutes, by code and subject.
function repeats(d) {
  const counts = new Map();
  for (const e of d.events) {
    if (e.kind !== "finding" || !e.to || d.at_ms - Date.parse(e.time) > lately) continue;
    const key = `${e.to} ${subject(e)}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return counts;
}

const severities = { problem: ["bad", "Problem"], warning: ["warn", "Warning"], note: ["info", "Note"] };

// rows are the findings; of many with one code, the first ones and a sum of the others.
function rows(all) {
  const byCode = new Map();
  for (const f of all) byCode.set(f.code, [...(byCode.get(f.code) ?? []), f]);
  return [...byCode.values()].flatMap((same) => {
    if (same.length <= ofOne) return same;
    const rest = same.slice(ofOne - 1), nodes = rest.map((f) => f.node).filter(Boolean), apps = [...new Set(rest.map((f) => f.app).filter(Boolean))];
    const whose = nodes.length ? `: nodes ${nodes.join(", ")}` : apps.length ? `: apps ${apps.join(", ")}` : "";
    return [...same.slice(0, ofOne - 1), { ...rest[0], node: "more", app: "", session: "", trace_id: "", since: undefined, do: "", text: `${rest.length} more of this kind${whose}.` }];
  });
}

export function drawFindings(d) {
  const well = { severity: "", code: "", text: d.nodes.nodes.length ? "Nothing is wrong." : "Nothing is wrong so far. No node is known yet.", do: "" };
  const all = d.findings.length ? rows(d.findings) : [well], counts = repeats(d);
  const keyOf = (f) => `${f.code} ${f.node ?? ""} ${f.app ?? ""} ${f.session ?? ""} ${f.digest ?? ""} ${f.trace_id ?? ""}`;
  keyed($("findings"), all, keyOf, (f) => h("li", {}, h("b"), h("span", { class: "what" }, h("span"), " ", h("span", { class: "dim" }), " ",
    f.runbook ? h("a", { href: f.runbook, target: "_blank", rel: "noreferrer noopener" }) : ""), h("span", { class: "dim since" })), (el, f) => {
    const [kind, word] = severities[f.severity] ?? ["good", "Good"], [name, what, since] = el.children;
    cls(el, kind);
    text(name, word);
    text(what.children[0], f.text);
    text(what.children[1], f.do ?? "");
    const times = counts.get(`${f.code} ${subject(f)}`) ?? 0;
    if (f.runbook) text(what.children[2], `${f.code}${times > 1 ? ` ×${times}` : ""}, runbook`);
    text(since, f.since ? `since ${clock(f.since)}` : "");
  });
  // Heard once, when it begins: the figures in the texts change all the time.
  const keys = all.map(keyOf).join();
  if ($("heard").dataset.keys !== keys) {
    $("heard").dataset.keys = keys;
    text($("heard"), all.map((f) => f.text).join(" "));
  }
}

const acts = { ban: "ban", drain: "drain" }; // of operators, for nodes

// step is what an event says in a few words, with its colour.
function step(e) {
  if (e.kind === "finding") return e.to ? [e.to, "warn"] : [`${e.from} ended`, "good"];
  if (e.from && !e.to) return [`${acts[e.kind] ?? e.from} ended`, "good"];
  const said = e.from || e.to ? `${acts[e.kind] ? "" : e.from ?? ""}${e.from && e.to && !acts[e.kind] ? " → " : ""}${e.to ?? ""}` : e.kind;
  return [said, /healthy$/.test(said) ? "good" : /ejected|panic/.test(said) ? "bad" : /suspect|leav|ban|drain/.test(said) ? "warn" : "dim"];
}

// listed are the events, newest first. What begins and ends again and again is one row, that of its newest event.
export function listed(d) {
  const all = [...own, ...d.events.map((e) => ({ ...e, key: `${d.process} ${e.seq}`, at: Date.parse(e.time) }))].sort((a, b) => b.at - a.at);
  const newest = new Map(), out = [];
  for (const e of all) {
    const [said, look] = step(e), code = e.kind === "finding" ? e.to || e.from : "";
    const row = { ...e, said, look, times: e.to ? 1 : 0 }, key = `${code} ${subject(e)}`, same = code && newest.get(key);
    if (same && same.first - e.at <= lately) {
      same.row.times += row.times;
      same.first = e.at;
      continue;
    }
    if (code) newest.set(key, { row, first: e.at });
    out.push(row);
  }
  return out;
}

export function drawEvents(d) {
  const all = listed(d);
  keyed($("events").tBodies[0], all, (e) => e.key, (e) => h("tr", {}, h("td", { class: "dim" }, clock(e.at)), h("td", { class: "num" }, e.node ? `node ${e.node}` : ""),
    h("td", {}, h("span", { class: e.look }), " ", e.reason)), (row, e) => text(row.lastChild.firstChild, `${e.said}${e.times > 1 ? ` ×${e.times}` : ""}`));
  $("events-none").hidden = all.length > 0;
}
