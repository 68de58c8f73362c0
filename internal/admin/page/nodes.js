// The nodes, the worst first: a tile for each, or a table if there are many.
import { control } from "./control.js";
import { $, clock, cls, h, keyed, ms, rate, text, whole, width } from "./dom.js";
import { lines, spark } from "./draw.js";
import { newest, past, room } from "./past.js";

const maxTiles = 12; // nodes; more are a table

// look says how a node is: the colour, and one word.
export function look(n) {
  if (n.banned) return ["warn", "banned"];
  if (n.unreachable) return ["bad", "unreachable"];
  if (n.health === "ejected") return ["bad", "ejected"];
  if (n.drained) return ["warn", "drained"];
  if (n.leaving) return ["warn", "draining"];
  if (n.listed_unhealthy) return ["warn", "listed unhealthy"];
  if (n.health === "suspect") return ["warn", "suspect"];
  if (n.health === "probing") return ["info", "probing"];
  return n.share ? ["info", "slow start"] : ["good", "healthy"];
}

const ranks = ["bad", "warn", "info", "good"];
const rank = (n) => ranks.indexOf(look(n)[0]);

// worstFirst sorts nodes by how bad they are, and equals by their number.
export const worstFirst = (nodes) => [...nodes].sort((a, b) => rank(a) - rank(b) || a.id - b.id);

const buttons = (props) => h("div", { class: "acts", ...props }, h("button", { type: "button", "data-act": "ban" }), h("button", { type: "button", "data-act": "drain" }));

function makeNode() {
  const row = (name, picture) => [h("span", { class: "dim" }, name), picture, h("span", { class: "num" })];
  return h("article", {},
    h("div", { class: "top" }, h("h4"), h("span", { class: "dim" }), h("span")),
    h("p", { class: "why" }, h("span"), h("span", { class: "dim" })),
    h("div", { class: "rows" },
      ...row("sessions", h("div", { class: "meter", "aria-hidden": "true" }, h("i", { class: "used" }), h("i", { class: "idle" }), h("i", { class: "creating" }))),
      ...row("calls/s", spark("-calls")), ...row("ms", spark("p50", "p99"))),
    buttons({ hidden: true }));
}

export function drawNodes(d) {
  const nodes = worstFirst(d.nodes.nodes), many = nodes.length > maxTiles;
  drawTiles(d, many ? [] : nodes);
  drawTable(many ? nodes : []);
  const good = nodes.filter((n) => look(n)[0] === "good").length;
  text($("nodes-sum"), nodes.length ? `${good} of ${nodes.length} healthy` : "");
  $("nodes-none").hidden = nodes.length > 0;
  $("nodes-legend").hidden = many;
}

function drawTiles(d, nodes) {
  const series = (id) => past.nodes[id] ?? {};
  const top = (name) => Math.max(...nodes.flatMap((n) => series(n.id)[name] ?? [0]), 0.001);
  const scale = { calls: top("calls"), ms: top("p99"), sessions: Math.max(...nodes.map((n) => n.idle + n.busy + n.creating), 1) };
  const zones = new Map(); // those with the worst nodes first
  for (const n of [...nodes].sort((a, b) => (a.zone ?? "") < (b.zone ?? "") ? -1 : 1).sort((a, b) => rank(a) - rank(b))) zones.set(n.zone ?? "", []);
  for (const n of nodes) zones.get(n.zone ?? "").push(n);
  keyed($("nodes"), [...zones.keys()], (z) => z, () => h("div", { class: "zone" }, h("h3"), h("div", { class: "tiles" })), (el, zone) => {
    const preferred = d.nodes.preferred?.includes(zone) ? ", preferred" : "";
    text(el.firstChild, zone ? `${/^zone/i.test(zone) ? "" : "Zone "}${zone}${preferred}` : "");
    el.firstChild.hidden = !zone || (zones.size === 1 && !preferred);
    keyed(el.lastChild, zones.get(zone), (n) => n.id, makeNode, (tile, n) => drawNode(tile, n, series(n.id), scale));
  });
  cls($("nodes"), zones.size > 1 ? "zones" : "");
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
    text(why.firstChild, reason(n, word));
    text(why.lastChild, n.next);
  }
  const [, meter, sessions, , calls, callsNow, , took, tookNow] = rows.children;
  [n.busy, n.idle, n.creating].forEach((v, i) => width(meter.children[i], v / scale.sessions));
  text(sessions, `${whole(n.busy)} used, ${whole(n.idle)} idle`);
  lines(calls, [room(past.calls)], scale.calls);
  text(callsNow, rate(newest(past.calls)));
  lines(took, [room(past.p50), room(past.p99)], scale.ms, true);
  text(tookNow, newest(past.p99) ? `${ms(newest(past.p50))} / ${ms(newest(past.p99))}` : "no calls");
  drawButtons(acts, n);
}

const reason = (n, word) => `${n.since ? `Since ${clock(n.since)}: ` : ""}${n.reason || word}`;

function drawButtons(acts, n) {
  acts.hidden = !control.allowed;
  if (!control.allowed) return;
  text(acts.children[0], n.banned ? "Unban" : "Ban");
  text(acts.children[1], n.drained ? "Undrain" : "Drain");
  for (const b of acts.children) {
    const label = `${b.textContent} node ${n.id}`;
    if (b.getAttribute("aria-label") !== label) b.setAttribute("aria-label", label);
  }
}

function drawTable(nodes) {
  keyed($("nodes-table").tBodies[0], nodes, (n) => n.id, () => h("tr", {}, h("td", { class: "r first" }), h("td", {}, h("span", { class: "pill" })), h("td", { class: "wide" }),
    h("td", { class: "wide" }), h("td", { class: "reason" }), h("td", { class: "r" }), h("td", { class: "r" }), h("td", { class: "r" }), h("td", {}, buttons({ hidden: true }))), (row, n) => {
    const [kind, word] = look(n), series = past.nodes[n.id] ?? {};
    const [id, state, address, zone, why, sessions, calls, took, acts] = row.children;
    row.dataset.node = n.id;
    cls(row, kind);
    text(id, n.id);
    text(state.firstChild, word);
    cls(state.firstChild, `pill ${kind}`);
    text(address, n.address);
    text(zone, n.zone ?? "");
    text(why, kind === "good" ? "" : reason(n, word));
    text(sessions, `${whole(n.busy)} / ${whole(n.idle)}`);
    sessions.title = "sessions in use / idle";
    text(calls, past.nodes[n.id] ? rate(newest(series.calls)) : "");
    text(took, newest(series.p99) ? `${ms(newest(series.p50))} / ${ms(newest(series.p99))}` : "");
    drawButtons(acts.firstChild, n);
  });
  $("nodes-many").hidden = nodes.length === 0;
}
