// The charts and the row of figures above them.
import { $, cls, h, keyed, ms, rate, text, whole } from "./dom.js";
import { Chart, lines, spark } from "./draw.js";
import { newest, past, room, times } from "./past.js";

const charts = {
  time: new Chart($("time"), { label: "Where time goes, milliseconds of a call", format: ms, least: 0.5, stacked: true }),
  errors: new Chart($("errors"), { label: "Errors a second", format: rate, stacked: true, calm: "No errors" }),
  sessions: new Chart($("sessions"), { label: "Sessions", format: whole, least: 4, stacked: true }),
  line: new Chart($("line"), { label: "Waiting line", format: whole, least: 4 }),
};

export function drawCharts() {
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

export function drawFigures(d) {
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
