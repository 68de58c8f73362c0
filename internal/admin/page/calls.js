// Open calls, slow calls, statements and transactions: a table of each.
import { control } from "./control.js";
import { $, clock, cls, h, keyed, lead, ms, span, text, whole, width } from "./dom.js";
import { past } from "./past.js";

// link writes the beginning of a trace's id, and leads to it if the operator said where traces are.
function link(cell, d, id = "") {
  if (cell.dataset.trace === id) return cell;
  cell.dataset.trace = id;
  const href = d.trace_link?.replaceAll("{trace_id}", id);
  cell.replaceChildren(!id ? "" : href ? h("a", { href, target: "_blank", rel: "noreferrer noopener", title: id }, id.slice(0, 8)) : h("span", { title: id }, id.slice(0, 8)));
  return cell;
}

export function drawOpen(d) {
  const { calls, more, least_ms: least, guide } = d.open_calls;
  keyed($("open").tBodies[0], calls, (c) => c.call, (c) => h("tr", {}, h("td", { class: "r first" }), h("td", { class: "app" }, c.app ?? ""), h("td"), h("td", { class: "r on" }),
    h("td", { class: "call" }, c.name, h("span", { class: "dim" }, ` ${c.api}`)), h("td", { class: "digest" }), h("td"),
    h("td", {}, h("button", { type: "button", "data-act": "end", "data-call": c.call, "data-name": c.name, "data-app": c.app ?? "", "aria-label": `End call ${c.call} of app ${c.app ?? "without a name"}` }, "End"))), (row, c) => {
    const [age, , phase, node, , digest, trace, end] = row.children;
    text(age, span(c.age_ms));
    text(phase, c.phase);
    cls(phase, ["queue", "paused"].includes(c.phase) ? "warn" : c.phase === "node" && c.node_id ? "named" : "");
    text(node, c.node_id ? `${c.node_id}` : "");
    text(digest, c.digest ?? "");
    link(trace, d, c.trace_id);
    end.firstChild.hidden = !control.allowed;
  });
  text($("open-sum"), more ? `and ${whole(more)} more` : "");
  text($("open-none"), `No call has been open for ${span(least)}.`);
  lead($("open-guide"), guide);
  $("open-none").hidden = calls.length > 0;
  $("open").hidden = calls.length === 0;
}

export function drawSlow(d) {
  const worst = d.slow[0]?.took ?? 1;
  keyed($("slow").tBodies[0], d.slow, (c) => `${c.at_ms} ${c.took} ${c.name} ${c.trace_id}`, (c) => {
    const parts = ["queue", "acquire", "hop", "server"].map((k) => [k, c[k]]);
    parts.push(["rest", Math.max(c.took - parts.reduce((sum, [, v]) => sum + v, 0), 0)]);
    const said = parts.filter(([, v]) => v > 0).map(([k, v]) => `${{ rest: "overhead" }[k] ?? k} ${ms(v)} ms`).join(", ");
    const meter = h("div", { class: "meter", role: "img", "aria-label": said, title: said }, ...parts.map(([k]) => h("i", { class: k })));
    const tries = c.attempts > 1 ? ` (${c.attempts} attempts)` : "";
    const row = h("tr", {}, h("td", { class: "r first" }, ms(c.took)), h("td", { class: "bar" }, meter), h("td", { class: "call" }, c.name, h("span", { class: "dim" }, ` ${c.face}`)),
      h("td", { class: `status ${!c.status ? "dim" : past.caller.has(c.status) ? "" : "bad"}` }, (c.status ?? "OK") + tries), h("td", { class: "r on" }, c.node ? `${c.node}` : ""), h("td", { class: "app" }, c.app ?? ""),
      h("td", { class: "r at" }, clock(c.at_ms), h("span", { class: "dim" })),
      link(h("td"), d, c.trace_id));
    row.parts = parts;
    return row;
  }, (row, c) => {
    row.parts.forEach(([, v], i) => width(row.children[1].firstChild.children[i], v / worst));
    text(row.querySelector(".at span"), c.others ? ` and ${c.others} more then` : "");
  });
  $("slow-none").hidden = d.slow.length > 0;
  $("slow").hidden = d.slow.length === 0;
}

// blame splits the failed calls of a statement into errors of the service and of callers, and lists them by status.
function blame({ failed, statuses = {} }) {
  const all = Object.entries(statuses), callers = all.reduce((sum, [status, n]) => sum + (past.caller.has(status) ? n : 0), 0);
  return { service: failed - callers, callers, said: all.map(([status, n]) => `${status}: ${whole(n)}`).join(", ") };
}

export function drawStatements(d) {
  const list = d.statements.filter((s) => s.last_minute.calls > 0);
  keyed($("statements").tBodies[0], list, (s) => s.digest, (s) => h("tr", {}, h("td", { class: "first" }, s.digest), h("td", { class: "wide" }), h("td", { class: "r" }), h("td", { class: "r" }),
    h("td", { class: "r wide" }), h("td", { class: "r wide" }), h("td", { class: "r" }), h("td", { class: "r wide" }), h("td", { class: "r wide" }), h("td", { class: "wide" })), (row, s) => {
    const [digest, kind, calls, failed, callers, p50, p99, time, texts, app] = row.children, minute = s.last_minute, of = blame(minute);
    digest.title = s.text ?? "";
    text(kind, s.kind);
    text(calls, whole(minute.calls));
    text(failed, whole(of.service));
    cls(failed, `r ${of.service ? "bad" : ""}`);
    text(callers, whole(of.callers));
    failed.title = callers.title = of.said;
    text(p50, ms(minute.p50_ms));
    text(p99, ms(minute.p99_ms));
    text(time, (minute.took_ms / 1000).toFixed(1));
    text(texts, whole(s.texts));
    text(app, s.app);
  });
  $("statements-none").hidden = list.length > 0;
  $("statements").hidden = list.length === 0;
}

export function drawTransactions(d) {
  let n = 0;
  keyed($("transactions").tBodies[0], d.transactions, () => n++, () => h("tr", {}, h("td"), h("td", { class: "bar" }, h("div", { class: "meter", "aria-hidden": "true" }, h("i", { class: "transactions" }))),
    h("td", { class: "app" }), h("td"), h("td", { class: "r on" }), h("td"), h("td", { class: "r left" }), h("td"), h("td", {}, h("button", { type: "button", "data-act": "kill" }, "Kill"))), (row, t) => {
    const part = t.age_ms / d.tx_max_ms, [age, bar, app, mode, node, now, left, trace, kill] = row.children;
    text(age, span(t.age_ms));
    cls(age, `r first ${d.held_long_ms && t.age_ms > d.held_long_ms ? "bad" : ""}`);
    text(app, t.app);
    link(trace, d, t.trace_id);
    width(bar.firstChild.firstChild, part);
    text(mode, t.mode || "waits for a session");
    text(node, t.node_id ? `${t.node_id}` : "");
    text(now, t.busy ? "a call runs" : "idle");
    text(left, span(t.expires_ms));
    kill.firstChild.hidden = !control.allowed || !t.session;
    kill.firstChild.dataset.session = t.session;
    kill.firstChild.dataset.app = t.app;
    const label = `Kill session ${t.session} of app ${t.app}`;
    if (kill.firstChild.getAttribute("aria-label") !== label) kill.firstChild.setAttribute("aria-label", label);
  });
  text($("transactions-sum"), d.api.transactions ? `${whole(d.api.transactions)} open, each at most ${span(d.tx_max_ms)}` : "");
  $("transactions").hidden = d.transactions.length === 0;
  $("transactions-none").hidden = d.transactions.length > 0;
}
