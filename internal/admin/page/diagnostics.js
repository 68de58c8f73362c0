// One text for a ticket: what this sidecar is, what is wrong, its oldest calls, its pool, its nodes and the last events.
// It has no statement, no parameter, no token and no id of a session.
import { facts } from "./apps.js";
import { ms, rate, span } from "./dom.js";
import { listed } from "./findings.js";
import { look, worstFirst } from "./nodes.js";
import { lately, newest, past } from "./past.js";

const maxNodes = 50;
const maxEvents = 30;

export function diagnostics(d) {
  const all = past.all, p = d.pool, callers = lately(all.caller);
  const lines = [`ydb-sidecar ${d.version}, ${new Date(d.at_ms).toISOString()}, ${d.stage}, up ${span(d.uptime_s * 1000)}`, ...facts(d).map(([name, value]) => `${name}: ${value}`)];
  const part = (name, some) => lines.push("", name, ...(some.length ? some.map((s) => `  ${s}`) : ["  none"]));
  part("FINDINGS", d.findings.map((f) => `${f.severity} ${f.code} since ${f.since}: ${f.text}`));
  part("CALLS", [
    `${rate(newest(all.calls))}/s, service errors ${rate(Math.max(lately(all.failed) - callers, 0))}/s, caller errors ${rate(callers)}/s, retries ${rate(lately(all.retries))}/s, p50 ${ms(newest(all.p50))} ms, p99 ${ms(newest(all.p99))} ms`,
    ...Object.entries(past.errors).map(([kind, values]) => `${kind} ${rate(lately(values))}/s${past.caller.has(kind) ? " (caller)" : ""}`),
  ]);
  part("OPEN CALLS", [...d.open_calls.calls.map((c) => `${span(c.age_ms)} ${c.name} ${c.api}, app ${c.app || "no name"}, ${c.phase}${c.node_id ? `, node ${c.node_id}` : ""}${c.trace_id ? `, trace ${c.trace_id}` : ""}`),
    ...(d.open_calls.more ? [`and ${d.open_calls.more} more`] : [])]);
  part("POOL", [
    `in use ${p.busy} of ${p.limit} (pool.max ${p.max}), idle ${p.idle}, opening ${p.creating}, open transactions ${d.api.transactions}${p.paused ? ", paused" : ""}`,
    `waiting ${Object.entries(p.waiting).map(([name, n]) => `${name} ${n}`).join(", ")}; timed out ${p.timed_out}, refused ${p.refused}, failed to open ${p.failed}${p.open_error ? ` (${p.open_error})` : ""}`,
  ]);
  part("APPS", d.apps.map((a) => `${a.app || "no name"}: in use ${a.in_use}, waiting ${a.waiting}, open ${a.open}, refused ${JSON.stringify(a.refused)}`));
  const nodes = worstFirst(d.nodes.nodes);
  part("NODES", [...nodes.slice(0, maxNodes).map((n) => `${n.id} ${n.address} ${n.zone ?? ""} ${look(n)[1]}, ${n.busy} used, ${n.idle} idle${n.reason ? `: ${n.reason}` : ""}`),
    ...(nodes.length > maxNodes ? [`and ${nodes.length - maxNodes} more`] : [])]);
  part("EVENTS", listed(d).slice(0, maxEvents).map((e) => `${new Date(e.at).toISOString()} ${e.node ? `node ${e.node} ` : ""}${e.said}${e.times > 1 ? ` x${e.times}` : ""} ${e.reason}`));
  return `${lines.join("\n")}\n`;
}
