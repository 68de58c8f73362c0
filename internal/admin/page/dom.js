// Small helpers: elements, lists that keep their elements, and numbers for people.

export const $ = (id) => document.getElementById(id);

export function h(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  for (const [k, v] of Object.entries(props)) {
    if (k.startsWith("on")) el.addEventListener(k.slice(2), v);
    else if (k === "class") el.className = v;
    else if (v !== undefined && v !== false) el.setAttribute(k, v === true ? "" : v);
  }
  el.append(...children);
  return el;
}

// text writes only what is new: screen readers and selections stay undisturbed.
export function text(el, s) {
  s = String(s);
  if (el.textContent !== s) el.textContent = s;
}

export function cls(el, s) {
  if (el.className !== s) el.className = s;
}

// lead has a link lead to an address that only the sidecar knows.
export function lead(el, href) {
  if (el.getAttribute("href") !== href) el.setAttribute("href", href);
}

const lists = new WeakMap();

// keyed makes the children of parent fit items. An element stays with its item, and keeps the focus, while the item stays.
export function keyed(parent, items, keyOf, make, update) {
  const old = lists.get(parent) ?? new Map(), next = new Map();
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const el = old.get(key) ?? make(item);
    old.delete(key);
    next.set(key, el);
    update(el, item);
    if (el === at) at = at.nextElementSibling;
    else parent.insertBefore(el, at);
  }
  for (const el of old.values()) el.remove();
  lists.set(parent, next);
}

export const width = (el, part) => el.style.setProperty("--w", `${(100 * Math.min(Math.max(part, 0), 1)).toFixed(2)}%`);

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const whole = (v) => grouped.format(v);
export const rate = (v) => (v >= 100 ? grouped.format(v) : v >= 10 ? v.toFixed(0) : v === 0 ? "0" : v < 0.1 ? v.toFixed(2) : v.toFixed(1));
export const ms = (v) => (v >= 100 ? grouped.format(v) : v >= 10 ? v.toFixed(1) : v.toFixed(2));

const hms = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const hm = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
export const clock = (t) => hms.format(new Date(t));
export const minute = (t) => hm.format(new Date(t));

// span is a length of time, from milliseconds.
export function span(t) {
  const s = Math.max(0, t / 1000);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 6000) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.round((s % 86400) / 3600)} h`;
}
