// What is wrong, and what happened.
import { $, clock, cls, h, keyed, text } from "./dom.js";

// own are events that only the page saw.
export const own = [];

export function drawEvents(d) {
  const all = [...own, ...d.events.map((e) => ({ ...e, key: `${d.process} ${e.seq}`, at: Date.parse(e.time) }))].sort((a, b) => b.at - a.at);
  keyed($("events").tBodies[0], all, (e) => e.key, (e) => {
    const step = e.kind === "finding" ? `${e.to || e.from}${e.to ? "" : " ended"}` : e.from || e.to ? `${e.from ?? ""}${e.from && e.to ? " → " : ""}${e.to ?? ""}` : e.kind;
    const kind = e.kind === "finding" ? (e.to ? "warn" : "good") : /healthy$/.test(step) ? "good" : /ejected|panic/.test(step) ? "bad" : /suspect|leav|ban|drain/.test(step) ? "warn" : "dim";
    return h("tr", {}, h("td", { class: "dim" }, clock(e.at)), h("td", { class: "num" }, e.node ? `node ${e.node}` : ""),
      h("td", {}, h("span", { class: kind }, step), " ", e.reason));
  }, () => {});
  $("events-none").hidden = all.length > 0;
}

const severities = { problem: ["bad", "Problem"], warning: ["warn", "Warning"], note: ["info", "Note"] };

export function drawFindings(d) {
  const well = { severity: "", code: "", text: d.nodes.nodes.length ? "Nothing is wrong." : "Nothing is wrong so far; no node is known yet.", do: "" };
  const all = d.findings.length ? d.findings : [well];
  const keyOf = (f) => `${f.code} ${f.node ?? ""} ${f.app ?? ""} ${f.session ?? ""} ${f.trace_id ?? ""}`;
  keyed($("findings"), all, keyOf, () => h("li", {}, h("b"), h("span", {}, h("span"), " ", h("span", { class: "dim" })), h("span", { class: "dim since" })), (el, f) => {
    const [kind, word] = severities[f.severity] ?? ["good", "Good"];
    cls(el, kind);
    text(el.children[0], word);
    text(el.children[1].firstChild, f.text);
    text(el.children[1].lastChild, f.do ?? "");
    text(el.children[2], f.since ? `since ${clock(f.since)}` : "");
  });
  // Heard once, when it begins: the figures in the texts change all the time.
  const keys = all.map(keyOf).join();
  if ($("heard").dataset.keys !== keys) {
    $("heard").dataset.keys = keys;
    text($("heard"), all.map((f) => f.text).join(" "));
  }
}
