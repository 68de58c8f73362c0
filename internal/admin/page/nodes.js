// The nodes: a tile for each.
import { control } from "./control.js";
import { $, clock, cls, h, keyed, ms, rate, text, whole, width } from "./dom.js";
import { lines, spark } from "./draw.js";
import { newest, past, room } from "./past.js";

// look says how a node is: the colour, and one word.
function look(n) {
  if (n.banned) return ["warn", "banned"];
  if (n.unreachable) return ["bad", "unreachable"];
  if (n.health === "ejected") return ["bad", "ejected"];
  if (n.drained) return ["warn", "drained"];
  if (n.leaving) return ["warn", "leaving"];
  if (n.listed_unhealthy) return ["warn", "listed unhealthy"];
  if (n.health === "suspect") return ["warn", "suspect"];
  if (n.health === "probing") return ["info", "probing"];
  return n.share ? ["info", "slow start"] : ["good", "healthy"];
}

function makeNode() {
  const row = (name, picture) => [h("span", { class: "dim" }, name), picture, h("span", { class: "num" })];
  return h("article", {},
    h("div", { class: "top" }, h("h4"), h("span", { class: "dim" }), h("span")),
    h("p", { class: "why" }, h("span"), h("span", { class: "dim" })),
    h("div", { class: "rows" },
      ...row("sessions", h("div", { class: "meter", "aria-hidden": "true" }, h("i", { class: "used" }), h("i", { class: "idle" }), h("i", { class: "creating" }))),
      ...row("calls/s", spark("-calls")), ...row("ms", spark("p50", "p99"))),
    h("div", { class: "acts", hidden: true },
      h("button", { type: "button", "data-act": "ban" }), h("button", { type: "button", "data-act": "drain" })));
}

export function drawNodes(d) {
  const nodes = d.nodes.nodes, series = (id) => past.nodes[id] ?? {};
  const top = (name) => Math.max(...nodes.flatMap((n) => series(n.id)[name] ?? [0]), 0.001);
  const scale = { calls: top("calls"), ms: top("p99"), sessions: Math.max(...nodes.map((n) => n.idle + n.busy + n.creating), 1) };
  const zones = Map.groupBy ? Map.groupBy(nodes, (n) => n.zone ?? "") : nodes.reduce((m, n) => m.set(n.zone ?? "", [...(m.get(n.zone ?? "") ?? []), n]), new Map());
  const order = [...zones.keys()].sort();
  keyed($("nodes"), order, (z) => z, () => h("div", { class: "zone" }, h("h3"), h("div", { class: "tiles" })), (el, zone) => {
    const preferred = d.nodes.preferred?.includes(zone) ? ", preferred" : "";
    text(el.firstChild, zone ? `${/^zone/i.test(zone) ? "" : "Zone "}${zone}${preferred}` : "");
    el.firstChild.hidden = !zone || (order.length === 1 && !preferred);
    keyed(el.lastChild, zones.get(zone), (n) => n.id, makeNode, (tile, n) => drawNode(tile, n, series(n.id), scale));
  });
  cls($("nodes"), order.length > 1 ? "zones" : "");
  const good = nodes.filter((n) => look(n)[0] === "good").length;
  text($("nodes-sum"), nodes.length ? `${good} of ${nodes.length} healthy` : "");
  $("nodes-none").hidden = nodes.length > 0;
}

function drawNode(tile, n, past, scale) {
  const [kind, word] = look(n);
  cls(tile, `node ${kind}`);
  tile.dataset.node = n.id;
  const [top, why, rows, acts] = tile.children;
  text(top.children[0], `Node ${n.id}`);
  text(top.children[1], n.address);
  text(top.children[2], word);
  cls(top.children[2], `pill ${kind}`);
  why.hidden = kind === "good";
  if (kind !== "good") {
    text(why.firstChild, `${n.since ? `Since ${clock(n.since)}: ` : ""}${n.reason || word}`);
    text(why.lastChild, n.next);
  }
  const [, meter, sessions, , calls, callsNow, , times, timesNow] = rows.children;
  [n.busy, n.idle, n.creating].forEach((v, i) => width(meter.children[i], v / scale.sessions));
  text(sessions, `${whole(n.busy)} used, ${whole(n.idle)} idle`);
  lines(calls, [room(past.calls)], scale.calls);
  text(callsNow, rate(newest(past.calls)));
  lines(times, [room(past.p50), room(past.p99)], scale.ms, true);
  text(timesNow, newest(past.p99) ? `${ms(newest(past.p50))} / ${ms(newest(past.p99))}` : "no calls");
  acts.hidden = !control.allowed;
  if (control.allowed) {
    text(acts.children[0], n.banned ? "Unban" : "Ban");
    text(acts.children[1], n.drained ? "Undrain" : "Drain");
    for (const b of acts.children) {
      const label = `${b.textContent} node ${n.id}`;
      if (b.getAttribute("aria-label") !== label) b.setAttribute("aria-label", label);
    }
  }
}
