// The charts and the row of figures above them.
import { $, cls, h, keyed, ms, rate, text, whole } from "./dom.js";
import { Chart, lines, spark } from "./draw.js";
import { bins, lately, means, newest, past, peaks, times } from "./past.js";

const charts = {
  time: new Chart($("time"), { label: "Where time goes, milliseconds of a call", format: ms, least: 0.5, stacked: true }),
  errors: new Chart($("errors"), { label: "Errors a second", format: rate, stacked: true, calm: "No errors" }),
  sessions: new Chart($("sessions"), { label: "Sessions", format: whole, least: 4, stacked: true }),
  queue: new Chart($("queue"), { label: "Queue", format: whole, least: 4, stacked: true, calm: "" }),
};

// The colours of errors: warm for the service's, cool for callers'. A kind keeps its colour for the life of the page.
const palettes = { service: ["s0", "s1", "s2", "s3", "s4"], caller: ["c0", "c1", "c2", "c3", "c4"] };
const colors = new Map();

function colorOf(kind) {
  if (!colors.has(kind)) {
    const palette = palettes[past.caller.has(kind) ? "caller" : "service"];
    const taken = Object.keys(past.errors).map((other) => colors.get(other));
    colors.set(kind, palette.find((c) => !taken.includes(c)) ?? palette[colors.size % palette.length]);
  }
  return colors.get(kind);
}

const maxKinds = 6; // of errors in the chart

function errorSeries(all) {
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const kinds = Object.entries(past.errors).sort((a, b) => sum(b[1]) - sum(a[1]));
  const head = kinds.length > maxKinds ? kinds.slice(0, maxKinds - 1) : kinds;
  const names = head.map(([kind]) => [colorOf(kind), kind]).sort().map(([, kind]) => kind); // the service's at the bottom
  const series = names.reverse().map((kind) => ({ key: kind, name: kind, color: colorOf(kind), values: means(all, past.errors[kind]) }));
  if (head.length < kinds.length) {
    const others = kinds.slice(head.length).map(([, values]) => means(all, values));
    series.unshift({ key: "others", name: `${others.length} other kinds`, color: "others", values: all.map((_, i) => sum(others.map((v) => v[i]))) });
  }
  return series;
}

export function drawCharts() {
  const all = bins(), xs = times(all), known = past.all;
  const show = (chart, series) => charts[chart].set(series, xs, series.map((s) => s.values ?? means(all, known[s.key])));
  const part = (key, name) => ({ key, name, color: key, values: means(all, known[key], known.calls) });
  show("time", [part("rest", "overhead"), part("queue", "queue"), part("acquire", "acquire"), part("hop", "hop"), part("server", "server")]);
  show("errors", errorSeries(all));
  show("sessions", [
    { key: "limit", name: "limit", color: "limit", line: true, dash: true },
    { key: "transactions", name: "open transactions", color: "transactions", line: true },
    { key: "creating", name: "creating", color: "creating" },
    { key: "idle", name: "idle", color: "idle", soft: true }, { key: "used", name: "used", color: "used" },
  ]);
  show("queue", [{ key: "waiting", name: "waiting callers", color: "waiting", values: peaks(all, known.waiting) }]);
}

export function drawFigures(d) {
  const known = past.all, p = d.pool, all = bins();
  const waiting = Object.values(p.waiting).reduce((a, b) => a + b, 0);
  const classes = Object.entries(p.waiting).filter(([, n]) => n > 0).map(([name, n]) => `${n} ${name}`).join(", ");
  const callers = lately(known.caller), service = Math.max(lately(known.failed) - callers, 0);
  const serviceErrors = known.failed?.map((v, i) => Math.max(v - (known.caller?.[i] ?? 0), 0));
  const one = (key, name, value, unit, values, color, look = "") => ({ key, name, value, unit, values, color, look });
  const mean = (key) => means(all, known[key]);
  keyed($("figures"), [
    one("calls", "Calls", rate(newest(known.calls)), "/s", mean("calls"), "info"),
    one("service", "Service errors", rate(service), "/s", means(all, serviceErrors), "bad", service > 0.005 ? "bad" : ""),
    one("caller", "Caller errors", rate(callers), "/s", mean("caller"), "calls"),
    one("retries", "Retries", rate(lately(known.retries)), `/s, ${whole(Math.floor(d.retries.left))} left`, mean("retries"), "acquire", d.retries.left < 1 ? "warn" : ""),
    one("p50", "Latency p50", ms(newest(known.p50)), "ms", means(all, known.p50, known.calls), "p50"),
    one("p99", "Latency p99", ms(newest(known.p99)), "ms", peaks(all, known.p99), "p99"),
    one("used", "Sessions in use", whole(p.busy), `of ${whole(p.limit)}, ${whole(p.idle)} idle`, mean("used"), "used", p.busy >= p.limit ? "warn" : ""),
    one("waiting", "Queue", whole(waiting), classes || "callers", peaks(all, known.waiting), "queue", waiting > 0 ? "warn" : ""),
  ], (f) => f.key, (f) => h("div", { "data-figure": f.key }, h("dt", {}, f.name), h("dd", {}, h("span"), " ", h("small")), spark(`-${f.color}`)), (el, f) => {
    const [, value, picture] = el.children;
    text(value.firstChild, f.value);
    cls(value, f.look);
    text(value.lastChild, f.unit);
    lines(picture, [f.values], Math.max(...f.values, f.key === "used" ? p.limit : 0));
  });
}
