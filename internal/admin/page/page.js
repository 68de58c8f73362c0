// The page of one sidecar: asks /state/page each second and shows what it says. Nothing else is asked, but on the operator's order.
import { drawApps, drawFacts } from "./apps.js";
import { drawOpen, drawSlow, drawStatements, drawTransactions } from "./calls.js";
import { drawCharts, drawFigures } from "./charts.js";
import { drawActs, mayControl, show, startControl } from "./control.js";
import { diagnostics } from "./diagnostics.js";
import { $, clock, cls, span, text } from "./dom.js";
import { restyle } from "./draw.js";
import { drawEvents, drawFindings, own } from "./findings.js";
import { drawNodes } from "./nodes.js";
import { merge, past, shown } from "./past.js";

const every = 1000; // ms between two questions

function drawHead(d) {
  text($("database"), d.database);
  text($("stage"), d.stage);
  cls($("stage"), `pill ${d.stage === "serving" ? "good" : "warn"}`);
  text($("about"), `${d.version}, up ${span(d.uptime_s * 1000 < 10000 ? Math.round(d.uptime_s) * 1000 : d.uptime_s * 1000)}`);
  const where = d.pod || d.host || "";
  text($("where"), d.pod && d.host && d.pod !== d.host ? `${d.pod} on ${d.host}` : where);
  document.title = `${d.findings.some((f) => f.severity === "problem") ? "(!) " : ""}${where} ydb-sidecar ${d.version} ${d.database}`.trim();
  const minutes = (shown() * past.step) / 60000;
  for (const el of document.querySelectorAll(".range")) text(el, `last ${minutes >= 2 ? `${Math.round(minutes)} minutes` : `${Math.round(minutes * 60)} s`}`);
}

let last; // the newest answer
function draw() {
  if (!last) return;
  for (const one of [drawHead, drawFindings, drawFigures, drawNodes, drawApps, drawFacts, drawOpen, drawSlow, drawStatements, drawTransactions, drawEvents, drawActs]) one(last);
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
    if (last && last.process !== d.process) own.unshift({ key: d.process, at: d.at_ms, kind: "process", reason: `a new process answers, version ${d.version}; its counters start from zero` });
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
  if (gone) text($("lost"), `Connection lost at ${clock(heard)}. The figures below are from that time. The page tries again every second.`);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });

// Copying. Long lists are cut on phones until they are asked for.
$("copy").addEventListener("click", async () => {
  if (!last) return;
  const body = diagnostics(last);
  try {
    await navigator.clipboard.writeText(body);
    text($("said"), "The diagnostics are copied.");
    text($("copy"), "Copied");
    setTimeout(() => text($("copy"), "Copy diagnostics"), 2000);
  } catch {
    show("Diagnostics", body);
  }
});
document.addEventListener("click", (e) => {
  const b = e.target.closest("button.more");
  if (!b) return;
  const all = $(b.dataset.of).classList.toggle("all");
  b.setAttribute("aria-expanded", `${all}`);
  text(b, all ? "Show fewer" : "Show all");
});

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
startControl({ last: () => last, ask, draw });
ask();
