// The page of one sidecar: asks /state/page each second and shows what it says. Nothing else is asked, but on the operator's order.
import { clock, cls, h, keyed, ms, rate, span, text, whole, width } from "./dom.js";
import { Chart, lines, restyle, spark } from "./draw.js";

const $ = (id) => document.getElementById(id);
const every = 1000; // ms between two questions
const most = 300; // points kept
const least = 60; // points that charts have room for from the start

// What is known of the last ten minutes: each series has the points up to number last.
const past = { process: "", last: 0, length: 0, at: 0, step: 2000, all: {}, errors: {}, nodes: {} };

function merge(process, p) {
  if (past.process !== process || p.first !== past.last + 1) {
    Object.assign(past, { process, length: 0, all: {}, errors: {}, nodes: {} });
  }
  const n = p.last + 1 - p.first;
  const join = (into, from) => {
    for (const key of new Set([...Object.keys(into), ...Object.keys(from)])) {
      const had = into[key] ?? new Array(past.length).fill(0);
      into[key] = had.concat(from[key] ?? new Array(n).fill(0)).slice(-most);
      if (!from[key] && into[key].every((v) => v === 0)) delete into[key];
    }
  };
  join(past.all, p.all);
  join(past.errors, p.errors);
  for (const id of Object.keys(past.nodes)) if (!p.nodes[id]) delete past.nodes[id];
  for (const [id, series] of Object.entries(p.nodes)) join((past.nodes[id] ??= {}), series);
  Object.assign(past, { last: p.last, at: p.at_ms, step: p.step_ms, length: Math.min(past.length + n, most) });
}

// shown is how many points there is room for; room has the values of a series in it, with 0 where there are none yet.
const shown = () => Math.max(past.length, least);
const room = (values = []) => new Array(shown() - values.length).fill(0).concat(values);
const times = () => Array.from({ length: shown() }, (_, i) => (past.at - (shown() - 1 - i) * past.step) / 1000);
const newest = (values) => values?.at(-1) ?? 0;

const charts = {
  time: new Chart($("time"), { label: "Where time goes, milliseconds of a call", format: ms, least: 0.5, stacked: true }),
  errors: new Chart($("errors"), { label: "Errors a second", format: rate, stacked: true, calm: "No errors" }),
  sessions: new Chart($("sessions"), { label: "Sessions", format: whole, least: 4, stacked: true }),
  line: new Chart($("line"), { label: "Waiting line", format: whole, least: 4 }),
};

function drawCharts() {
  const xs = times(), all = past.all;
  const show = (chart, series) => charts[chart].set(series, xs, series.map((s) => room(s.values ?? all[s.key])));
  show("time", [
    { key: "rest", name: "sidecar", color: "rest" }, { key: "queue", name: "queue", color: "queue" }, { key: "acquire", name: "acquire", color: "acquire" },
    { key: "hop", name: "network and node", color: "hop" }, { key: "server", name: "server", color: "server" },
  ]);
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const kinds = Object.entries(past.errors).sort((a, b) => sum(b[1]) - sum(a[1]));
  // In order of their names, so that a kind keeps its place and colour while counts change.
  const head = (kinds.length > 6 ? kinds.slice(0, 5) : kinds).sort(([a], [b]) => (a < b ? -1 : 1));
  const errors = head.map(([key, values], i) => ({ key, name: key, color: `e${i}`, values }));
  if (kinds.length > 6) {
    errors.push({ key: "others", name: `${kinds.length - 5} other kinds`, color: "e5",
      values: Array.from({ length: past.length }, (_, i) => sum(kinds.slice(5).map(([, v]) => v[i]))) });
  }
  show("errors", errors);
  show("sessions", [
    { key: "limit", name: "limit", color: "limit", line: true, dash: true }, { key: "creating", name: "creating", color: "creating" },
    { key: "idle", name: "idle", color: "idle", soft: true }, { key: "used", name: "used", color: "used" },
  ]);
  show("line", [{ key: "waiting", name: "waiting", color: "waiting" }, { key: "transactions", name: "transactions", color: "transactions" }]);
}

function drawFigures(d) {
  const all = past.all, p = d.pool;
  const waiting = Object.values(p.waiting).reduce((a, b) => a + b, 0);
  const classes = Object.entries(p.waiting).filter(([, n]) => n > 0).map(([name, n]) => `${n} ${name}`).join(", ");
  const one = (key, name, value, unit, series, color, bad = "") => ({ key, name, value, unit, series: room(all[series]), color, bad });
  keyed($("figures"), [
    one("calls", "Calls", rate(newest(all.calls)), "/s", "calls", "info"),
    one("failed", "Errors", rate(newest(all.failed)), "/s", "failed", "bad", newest(all.failed) > 0 ? "bad" : ""),
    one("p50", "Latency p50", ms(newest(all.p50)), "ms", "p50", "p50"),
    one("p99", "Latency p99", ms(newest(all.p99)), "ms", "p99", "p99"),
    one("used", "Sessions in use", whole(p.busy), `of ${whole(p.limit)}, ${whole(p.idle)} idle`, "used", "used", p.busy >= p.limit ? "warn" : ""),
    one("waiting", "Waiting for one", whole(waiting), classes || "calls", "waiting", "queue", waiting > 0 ? "warn" : ""),
  ], (f) => f.key, (f) => h("div", {}, h("dt", {}, f.name), h("dd", {}, h("span"), " ", h("small")), spark(`-${f.color}`)), (el, f) => {
    const [, value, picture] = el.children;
    text(value.firstChild, f.value);
    cls(value, f.bad);
    text(value.lastChild, f.unit);
    lines(picture, [f.series], Math.max(...f.series, f.key === "used" ? p.limit : 0));
  });
}

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

function drawNodes(d) {
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

// link writes the beginning of a trace's id, and leads to it if the operator said where traces are.
function link(cell, d, id = "") {
  if (cell.dataset.trace === id) return cell;
  cell.dataset.trace = id;
  const href = d.trace_link?.replaceAll("{trace_id}", id);
  cell.replaceChildren(!id ? "" : href ? h("a", { href, target: "_blank", rel: "noreferrer noopener", title: id }, id.slice(0, 8)) : h("span", { title: id }, id.slice(0, 8)));
  return cell;
}

function drawSlow(d) {
  const worst = d.slow[0]?.took ?? 1;
  keyed($("slow").tBodies[0], d.slow, (c) => `${c.at_ms} ${c.took} ${c.name} ${c.trace_id}`, (c) => {
    const parts = ["queue", "acquire", "hop", "server"].map((k) => [k, c[k]]);
    parts.push(["rest", Math.max(c.took - parts.reduce((sum, [, v]) => sum + v, 0), 0)]);
    const said = parts.filter(([, v]) => v > 0).map(([k, v]) => `${{ rest: "sidecar", hop: "network and node" }[k] ?? k} ${ms(v)} ms`).join(", ");
    const meter = h("div", { class: "meter", role: "img", "aria-label": said, title: said }, ...parts.map(([k]) => h("i", { class: k })));
    const tries = c.attempts > 1 ? ` (${c.attempts} attempts)` : "";
    const row = h("tr", {}, h("td", { class: "r first" }, ms(c.took)), h("td", { class: "bar" }, meter), h("td", { class: "call" }, c.name, h("span", { class: "dim" }, ` ${c.face}`)),
      h("td", { class: `status ${c.status ? "bad" : "dim"}` }, (c.status ?? "OK") + tries), h("td", { class: "r on" }, c.node ? `${c.node}` : ""), h("td", { class: "wide" }, c.app ?? ""),
      h("td", { class: "r" }, clock(c.at_ms)),
      link(h("td"), d, c.trace_id));
    row.parts = parts;
    return row;
  }, (row) => row.parts.forEach(([, v], i) => width(row.children[1].firstChild.children[i], v / worst)));
  $("slow-none").hidden = d.slow.length > 0;
  $("slow").hidden = d.slow.length === 0;
}

function drawStatements(d) {
  const list = d.statements.filter((s) => s.last_minute.calls > 0);
  keyed($("statements").tBodies[0], list, (s) => s.digest, (s) => h("tr", {}, h("td", { class: "first" }, s.digest), h("td", { class: "wide" }), h("td", { class: "r" }), h("td", { class: "r" }),
    h("td", { class: "r wide" }), h("td", { class: "r" }), h("td", { class: "r wide" }), h("td", { class: "r wide" }), h("td", { class: "wide" })), (row, s) => {
    const [digest, kind, calls, failed, p50, p99, time, texts, app] = row.children, minute = s.last_minute;
    digest.title = s.text ?? "";
    text(kind, s.kind);
    text(calls, whole(minute.calls));
    text(failed, whole(minute.failed));
    cls(failed, `r ${minute.failed ? "bad" : ""}`);
    text(p50, ms(minute.p50_ms));
    text(p99, ms(minute.p99_ms));
    text(time, (minute.took_ms / 1000).toFixed(1));
    text(texts, whole(s.texts));
    text(app, s.app);
  });
  $("statements-none").hidden = list.length > 0;
  $("statements").hidden = list.length === 0;
}

function drawTransactions(d) {
  let n = 0;
  keyed($("transactions").tBodies[0], d.transactions, () => n++, () => h("tr", {}, h("td"), h("td", { class: "bar" }, h("div", { class: "meter", "aria-hidden": "true" }, h("i", { class: "transactions" }))),
    h("td", { class: "app" }), h("td"), h("td", { class: "r on" }), h("td"), h("td", { class: "r left" }), h("td")), (row, t) => {
    const part = t.age_ms / d.tx_max_ms, [age, bar, app, mode, node, now, left, trace] = row.children;
    text(age, span(t.age_ms));
    cls(age, `r first ${d.held_long_ms && t.age_ms > d.held_long_ms ? "bad" : ""}`);
    text(app, t.app);
    link(trace, d, t.trace_id);
    width(bar.firstChild.firstChild, part);
    text(mode, t.mode || "waits for a session");
    text(node, t.node_id ? `${t.node_id}` : "");
    text(now, t.busy ? "a call runs" : "idle");
    text(left, span(t.expires_ms));
  });
  text($("transactions-sum"), d.api.transactions ? `${whole(d.api.transactions)} open, each at most ${span(d.tx_max_ms)}` : "");
  $("transactions").hidden = d.transactions.length === 0;
  $("transactions-none").hidden = d.transactions.length > 0;
}

// own are events that only the page saw.
const own = [];

function drawEvents(d) {
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

function drawFindings(d) {
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

function drawHead(d) {
  text($("database"), d.database);
  text($("stage"), d.stage);
  cls($("stage"), `pill ${d.stage === "serving" ? "good" : "warn"}`);
  text($("about"), `${d.version}, up ${span(d.uptime_s * 1000 < 10000 ? Math.round(d.uptime_s) * 1000 : d.uptime_s * 1000)}`);
  document.title = `${d.findings.some((f) => f.severity === "problem") ? "(!) " : ""}ydb-sidecar ${d.database}`;
  const minutes = (shown() * past.step) / 60000;
  for (const el of document.querySelectorAll(".range")) text(el, `last ${minutes >= 2 ? `${Math.round(minutes)} minutes` : `${Math.round(minutes * 60)} s`}`);
}

let last; // the newest answer
function draw() {
  if (!last) return;
  for (const one of [drawHead, drawFindings, drawFigures, drawNodes, drawSlow, drawStatements, drawTransactions, drawEvents, drawActs]) one(last);
  drawCharts();
}

// Asking. heard is when an answer came last; lost is when it was clear that none comes.
let heard = Date.now(), lost = 0, timer = 0;

async function ask() {
  clearTimeout(timer);
  const began = performance.now();
  try {
    const q = new URLSearchParams({ process: past.process, after: past.process ? past.last : 0 });
    const r = await fetch(`/state/page?${q}`, { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!r.ok) throw new Error(`${r.status}`);
    const d = await r.json();
    if (last && last.process !== d.process) own.unshift({ key: d.process, at: d.at_ms, kind: "process", reason: `a new process answers, version ${d.version}; all is counted anew` });
    own.length = Math.min(own.length, 20);
    if (d.history.last !== past.last || d.process !== past.process) merge(d.process, d.history);
    const back = lost !== 0 || !last;
    last = d;
    heard = Date.now();
    lost = 0;
    if (back) await mayControl();
    draw();
  } catch {
    lost ||= Date.now();
  }
  drawLive();
  if (!document.hidden) timer = setTimeout(ask, Math.max(every - (performance.now() - began), 100));
}

function drawLive() {
  const gone = lost !== 0;
  text($("live"), gone ? "lost" : "live");
  cls($("live"), `pill ${gone ? "bad" : "good"}`);
  $("lost").hidden = !gone;
  if (gone) text($("lost"), `Connection lost at ${clock(heard)}. What stands below is of that time. Trying again every second.`);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });

// What an operator may do. The token stays in this page's memory.
const control = { allowed: false, why: "", token: "" };

async function mayControl() {
  try {
    const r = await fetch("/state/control", { cache: "no-store", headers: headers(), signal: AbortSignal.timeout(5000) });
    Object.assign(control, { allowed: false, why: "" }, await r.json());
  } catch (e) {
    control.allowed = false;
    control.why = e.message;
  }
}

const headers = () => (control.token ? { Authorization: `Bearer ${control.token}` } : {});

async function post(path) {
  const r = await fetch(path, { method: "POST", headers: headers(), signal: AbortSignal.timeout(10000) });
  if (!r.ok) throw new Error((await r.text()).trim() || `${r.status}`);
}

function drawActs(d) {
  const b = $("control");
  b.hidden = control.allowed && !control.token;
  text(b, control.allowed ? "Lock control" : "Unlock control");
  const duck = d.stage === "lame duck", open = duck || d.stage === "serving";
  keyed($("process"), control.allowed && open ? [
    { key: "pause", name: d.pool.paused ? "Resume calls" : "Pause calls", ask: pausePool },
    { key: "duck", name: duck ? "Take lame duck back" : "Lame duck", ask: lameDuck },
    { key: "drain", name: "Drain", ask: drain },
  ] : [], (x) => x.key, (x) => h("button", { type: "button", onclick: x.ask }), (el, x) => text(el, x.name));
}

function pausePool() {
  const on = !last.pool.paused;
  question({
    title: on ? "Pause calls" : "Resume calls", yes: on ? "Pause" : "Resume",
    text: on ? "The calls of every API wait until they are resumed or their time is up. Calls under way and open transactions finish." : "Calls that wait go on.",
    run: () => post(`/pool/${on ? "pause" : "resume"}`), done: on ? "Calls are paused." : "Calls go on.",
  });
}

function lameDuck() {
  const on = last.stage !== "lame duck";
  question({
    title: on ? "Lame duck" : "Take lame duck back", yes: on ? "Begin" : "Take back",
    text: on ? "The sidecar tells its probes that it goes away, and serves everything that still comes. It can be taken back." : "The sidecar is ready again.",
    run: () => post(`/drain?mode=${on ? "lameduck" : "off"}`), done: on ? "The sidecar is a lame duck." : "The sidecar is ready again.",
  });
}

function drain() {
  question({
    title: "Drain the sidecar", yes: "Drain and end", text: "It finishes what is open, takes nothing new, deletes its sessions and ends, as with SIGTERM. This cannot be taken back.",
    run: () => post("/drain?mode=graceful"), done: "The sidecar drains and ends.",
  });
}

$("nodes").addEventListener("click", (e) => {
  const act = e.target.closest("button")?.dataset.act, id = e.target.closest("[data-node]")?.dataset.node;
  const n = last?.nodes.nodes.find((x) => `${x.id}` === id);
  if (!act || !n) return;
  if (act === "drain") {
    const on = !n.drained;
    question({
      title: `${on ? "Drain" : "Undrain"} node ${id}`, yes: on ? "Drain" : "Undrain",
      text: on ? "It gets no new work, and its sessions move to the other nodes. It stays so until it is taken back." : "It gets new work again.",
      run: () => post(`/nodes/${id}/${on ? "drain" : "undrain"}`), done: `Node ${id} is ${on ? "drained" : "in use again"}.`,
    });
  } else if (n.banned) {
    question({ title: `Unban node ${id}`, yes: "Unban", text: "It gets new work again, if it is healthy.", run: () => post(`/nodes/${id}/unban`), done: `Node ${id} is no longer banned.` });
  } else {
    question({
      title: `Ban node ${id}`, yes: "Ban", text: "It gets no new work; transactions on it may finish.",
      fields: [
        h("label", {}, "For", h("select", { name: "for" }, ...[["10m", "10 minutes"], ["1h", "1 hour"], ["24h", "24 hours"], ["", "until it is taken back"]].map(([value, name]) => h("option", { value }, name)))),
        h("label", {}, "Reason, for the others who look", h("input", { name: "reason", maxlength: "200", autocomplete: "off" })),
      ],
      run: (v) => post(`/nodes/${id}/ban?${new URLSearchParams(Object.entries(v).filter(([, x]) => x))}`), done: `Node ${id} is banned.`,
    });
  }
});

$("control").addEventListener("click", () => {
  if (control.allowed) {
    control.token = "";
    mayControl().then(draw);
    return;
  }
  question({
    title: "Unlock control", yes: "Unlock", text: control.why,
    fields: [h("label", {}, "Token (admin.token); it is kept until this page is closed", h("input", { name: "token", type: "password", autocomplete: "off", required: true }))],
    run: async (v) => {
      control.token = v.token.trim();
      await mayControl();
      if (control.allowed) return;
      control.token = "";
      throw new Error(control.why);
    }, done: "Control is unlocked.",
  });
});

// question asks in the dialog and runs what it is about.
let running;
function question({ title, text: body, yes, fields = [], run, done }) {
  text($("ask-title"), title);
  text($("ask-text"), body);
  text($("ask-yes"), yes);
  text($("ask-fault"), "");
  $("ask-fields").replaceChildren(...fields);
  running = async () => {
    const values = Object.fromEntries([...$("ask-fields").querySelectorAll("[name]")].map((f) => [f.name, f.value]));
    try {
      await run(values);
      $("ask").close();
      text($("said"), done);
    } catch (e) {
      text($("ask-fault"), e.message);
    }
    ask();
  };
  $("ask").showModal();
}
$("ask").querySelector("form").addEventListener("submit", (e) => { e.preventDefault(); running?.(); });
$("ask").addEventListener("close", () => { running = undefined; $("ask-fields").replaceChildren(); });
$("ask-no").addEventListener("click", () => $("ask").close());

// The theme: as the system has it, or as chosen.
const themes = ["auto", "light", "dark"];
function theme(name) {
  document.documentElement.dataset.theme = name;
  text($("theme"), `Theme: ${name}`);
  try { localStorage.setItem("theme", name); } catch { /* for this time only */ }
  restyle();
}
$("theme").addEventListener("click", () => theme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length]));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
text($("theme"), `Theme: ${document.documentElement.dataset.theme}`);
ask();
