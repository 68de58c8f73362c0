// Charts (by uPlot, which stands beside this file) and sparklines.
import { cls, h, keyed, minute, text } from "./dom.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const charts = new Set();

// restyle draws all anew, in the colours of the theme.
export const restyle = () => charts.forEach((c) => c.rebuild());

// Chart shows series over time, stacked or not. Its legend has the newest values, or those under the pointer; arrow keys move it.
export class Chart {
  constructor(el, { label, format, least = 1, stacked = false, calm = "" }) {
    Object.assign(this, { label, format, least, stacked, series: [], xs: [], values: [] });
    this.plot = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": label });
    this.calm = h("div", { class: "calm", hidden: true }, calm);
    this.plot.append(this.calm);
    this.legend = h("ul", { class: "legend" });
    el.append(this.plot, this.legend);
    new ResizeObserver(() => this.u?.setSize(this.size())).observe(this.plot);
    this.plot.addEventListener("keydown", (e) => this.key(e));
    this.plot.addEventListener("blur", () => this.u?.setCursor({ left: -10, top: -10 }));
    charts.add(this);
  }

  size() { return { width: Math.max(this.plot.clientWidth, 100), height: this.plot.clientHeight || 150 }; }

  // set shows series ({key, name, color, line: not part of the stack}) with their values, oldest first.
  set(series, xs, values) {
    const same = this.series.length === series.length && series.every((s, i) => s.key === this.series[i].key && s.color === this.series[i].color);
    Object.assign(this, { series, xs, values });
    if (!same || !this.u) this.rebuild();
    else this.u.setData(this.data());
    this.calm.hidden = series.length > 0 || this.calm.textContent === "";
    this.tell();
  }

  // data is what uPlot draws: of a stack the sums, the uppermost first.
  data() {
    if (!this.stacked) return [this.xs, ...this.values];
    const out = [];
    let below = this.xs.map(() => 0);
    for (let i = this.series.length - 1; i >= 0; i--) {
      if (this.series[i].line) { out.unshift(this.values[i]); continue; }
      below = below.map((b, j) => b + this.values[i][j]);
      out.unshift(below);
    }
    return [this.xs, ...out];
  }

  rebuild() {
    this.u?.destroy();
    const axis = { stroke: color("dim"), font: "11px system-ui, sans-serif", grid: { stroke: color("grid"), width: 1 }, ticks: { show: false } };
    const bands = [];
    this.series.forEach((s, i) => {
      const below = this.series.findIndex((o, j) => j > i && !o.line);
      if (this.stacked && !s.line && below > 0) bands.push({ series: [i + 1, below + 1] });
    });
    this.u = new uPlot({
      ...this.size(), bands, legend: { show: false }, padding: [6, 6, 0, 0],
      cursor: { sync: { key: "page" }, points: { show: false }, drag: { x: false, y: false }, y: false },
      scales: { y: { range: (_u, _min, max) => [0, Math.max(this.least, (max || 0) * 1.08)] } },
      axes: [
        { ...axis, size: 24, space: 60, incrs: [60, 120, 300], values: (_u, at) => at.map((t) => minute(t * 1000)) },
        { ...axis, size: 46, space: 32, values: (_u, at) => at.map((v) => (v === 0 ? "0" : this.format(v))) },
      ],
      series: [{}, ...this.series.map((s) => ({
        stroke: color(s.color), width: s.line ? 1.5 : 1, dash: s.dash ? [4, 4] : undefined, points: { show: false },
        fill: this.stacked && !s.line ? color(s.color) + (s.soft ? "" : "99") : undefined,
      }))],
      hooks: { setCursor: [() => this.tell()] },
    }, this.data(), this.plot);
  }

  // tell writes the legend.
  tell() {
    const at = this.u?.cursor.idx ?? this.xs.length - 1;
    keyed(this.legend, this.series.map((s, i) => ({ ...s, value: this.values[i][at] ?? 0 })), (s) => s.key,
      (s) => h("li", {}, h("i"), h("span"), h("b")),
      (el, s) => {
        cls(el.firstChild, `k ${s.color}`);
        text(el.children[1], s.name);
        text(el.lastChild, this.format(s.value));
      });
    const said = this.series.map((s, i) => `${s.name} ${this.format(this.values[i].at(-1) ?? 0)}`).join(", ");
    const label = `${this.label}: ${said || "nothing"}`;
    if (this.plot.getAttribute("aria-label") !== label) this.plot.setAttribute("aria-label", label);
  }

  key(e) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!step || !this.u) return;
    e.preventDefault();
    const at = Math.min(Math.max((this.u.cursor.idx ?? this.xs.length) + step, 0), this.xs.length - 1);
    this.u.setCursor({ left: this.u.valToPos(this.xs[at], "x"), top: 10 });
  }
}

const svg = (tag, attributes) => {
  const el = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) el.setAttribute(k, v);
  return el;
};

// spark makes the picture that line draws in.
export function spark(...names) {
  const el = svg("svg", { class: "spark", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  el.append(svg("line", { x1: 0, x2: 100, y1: 100, y2: 100 }));
  for (const name of names) {
    if (name.startsWith("-")) el.append(svg("path", { class: "area" }));
    el.append(svg("path", { "data-color": name.replace("-", "") }));
  }
  return el;
}

// lines draws the values of each name. All share one scale, up to most; a 0 is a gap where gaps is set.
export function lines(el, all, most, gaps) {
  const paths = [...el.querySelectorAll("path:not(.area)")];
  all.forEach((values, i) => {
    const path = paths[i], area = path.previousElementSibling, n = Math.max(values.length - 1, 1);
    let d = "", pen = "M";
    values.forEach((v, j) => {
      if (gaps && v === 0) { pen = "M"; return; }
      const x = ((100 * j) / n).toFixed(2), y = (98 - (96 * Math.min(v, most)) / (most || 1)).toFixed(2);
      d += `${pen}${x} ${y}`;
      if (pen === "M" && gaps) d += `h0.01`; // a lone point is seen too
      pen = "L";
    });
    path.setAttribute("d", d);
    path.style.stroke = `var(--${path.dataset.color})`;
    if (area?.classList.contains("area")) {
      area.setAttribute("d", d && !gaps ? `${d}L100 100L0 100Z` : "");
      area.style.fill = `var(--${path.dataset.color})`;
    }
  });
}
