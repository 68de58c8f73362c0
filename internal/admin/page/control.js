// What an operator may do: buttons, and a dialog that asks before anything is done.
import { $, h, keyed, text } from "./dom.js";

// page is what the buttons act on: the newest document, and how to ask for the next and draw it.
let page = { last: () => undefined, ask: () => {}, draw: () => {} };

export function startControl(of) {
  page = of;
}

// The token stays in this page's memory.
export const control = { allowed: false, why: "", token: "" };

export async function mayControl() {
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

export function drawActs(d) {
  const b = $("control");
  b.hidden = control.allowed && !control.token;
  text(b, control.allowed ? "Lock control" : "Unlock control");
  const duck = d.stage === "lame duck", open = duck || d.stage === "serving";
  keyed($("process"), control.allowed && open ? [
    { key: "resize", name: "Resize pool", ask: resize },
    { key: "pause", name: d.pool.paused ? "Resume calls" : "Pause calls", ask: pausePool },
    { key: "duck", name: duck ? "Take lame duck back" : "Lame duck", ask: lameDuck },
    { key: "drain", name: "Drain", ask: drain },
  ] : [], (x) => x.key, (x) => h("button", { type: "button", onclick: x.ask }), (el, x) => text(el, x.name));
}

function pausePool() {
  const on = !page.last().pool.paused;
  question({
    title: on ? "Pause calls" : "Resume calls", yes: on ? "Pause" : "Resume",
    text: on ? "Calls of every API wait until you resume them or their deadline passes. Calls under way and open transactions finish." : "Waiting calls continue.",
    run: () => post(`/pool/${on ? "pause" : "resume"}`), done: on ? "Calls are paused." : "Calls continue.",
  });
}

function lameDuck() {
  const on = page.last().stage !== "lame duck";
  question({
    title: on ? "Lame duck" : "Take lame duck back", yes: on ? "Begin" : "Take back",
    text: on ? "The readiness probe fails, so that new traffic goes elsewhere. The sidecar still serves every call. You can take this back." : "The readiness probe passes again.",
    run: () => post(`/drain?mode=${on ? "lameduck" : "off"}`), done: on ? "The sidecar is a lame duck." : "The sidecar is ready again.",
  });
}

function drain() {
  question({
    title: "Drain the sidecar", yes: "Drain and end", text: "The sidecar finishes open calls and transactions, rejects new ones, deletes its sessions and exits, as with SIGTERM. You cannot take this back.",
    run: () => post("/drain?mode=graceful"), done: "The sidecar drains and exits.",
  });
}

function resize() {
  const p = page.last().pool, field = (name, label, value) => h("label", {}, label, h("input", { name, type: "number", min: "0", step: "1", value: `${value}`, required: true }));
  question({
    title: "Resize the pool", yes: "Resize",
    text: "Changes pool.max and pool.min until a reload changes a setting of the pool, or the process ends. Idle sessions beyond the maximum are closed at once, others when their call or transaction ends.",
    fields: [field("max", "Maximum number of sessions (pool.max)", p.max), field("min", "Minimum number of sessions (pool.min)", p.min)],
    run: (v) => post(`/pool/resize?${new URLSearchParams(v)}`), done: "The pool is resized.",
  });
}

$("transactions").addEventListener("click", (e) => {
  const b = e.target.closest('[data-act="kill"]');
  if (!b) return;
  const { session, app } = b.dataset;
  question({
    title: `Kill session ${session}`, yes: "Kill", text: `The transaction of app ${app} is rolled back, a call in it fails, and the session is deleted on its node.`,
    run: () => post(`/sessions/${session}/kill`), done: `Session ${session} is killed.`,
  });
});

$("open").addEventListener("click", (e) => {
  const b = e.target.closest('[data-act="end"]');
  if (!b) return;
  const { call, name, app } = b.dataset;
  question({
    title: `End call ${call}`, yes: "End", text: `${name} of ${app ? `app ${app}` : "an app without a name"} fails with CANCELLED, and its node is told to stop. If it wrote, its outcome may be unknown.`,
    run: () => post(`/calls/${call}/kill`), done: `Call ${call} is ended.`,
  });
});

$("nodes-section").addEventListener("click", (e) => {
  const act = e.target.closest("button")?.dataset.act, id = e.target.closest("[data-node]")?.dataset.node;
  const n = page.last()?.nodes.nodes.find((x) => `${x.id}` === id);
  if (!act || !n) return;
  if (act === "drain") {
    const on = !n.drained;
    question({
      title: `${on ? "Drain" : "Undrain"} node ${id}`, yes: on ? "Drain" : "Undrain",
      text: on ? "The node gets no new work, and its sessions move to the other nodes, until you undrain it." : "The node gets new work again.",
      run: () => post(`/nodes/${id}/${on ? "drain" : "undrain"}`), done: `Node ${id} is ${on ? "drained" : "in use again"}.`,
    });
  } else if (n.banned) {
    question({ title: `Unban node ${id}`, yes: "Unban", text: "The node gets new work again if it is healthy.", run: () => post(`/nodes/${id}/unban`), done: `Node ${id} is no longer banned.` });
  } else {
    question({
      title: `Ban node ${id}`, yes: "Ban", text: "The node gets no new work. Open transactions on it may finish.",
      fields: [
        h("label", {}, "For", h("select", { name: "for" }, ...[["10m", "10 minutes"], ["1h", "1 hour"], ["24h", "24 hours"], ["", "until you unban it"]].map(([value, name]) => h("option", { value }, name)))),
        h("label", {}, "Reason (other operators see it)", h("input", { name: "reason", maxlength: "200", autocomplete: "off" })),
      ],
      run: (v) => post(`/nodes/${id}/ban?${new URLSearchParams(Object.entries(v).filter(([, x]) => x))}`), done: `Node ${id} is banned.`,
    });
  }
});

$("control").addEventListener("click", () => {
  if (control.allowed) {
    control.token = "";
    mayControl().then(page.draw);
    return;
  }
  question({
    title: "Unlock control", yes: "Unlock", text: control.why,
    fields: [h("label", {}, "Token (admin.token), kept until you close this page", h("input", { name: "token", type: "password", autocomplete: "off", required: true }))],
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
    page.ask();
  };
  $("ask").showModal();
}
$("ask").querySelector("form").addEventListener("submit", (e) => { e.preventDefault(); running?.(); });
$("ask").addEventListener("close", () => { running = undefined; $("ask-fields").replaceChildren(); });
$("ask-no").addEventListener("click", () => $("ask").close());

// show has a text ready to be copied by hand, where the browser does not give the clipboard to a page without TLS.
export function show(title, body) {
  question({ title, yes: "Close", text: "Select the text and copy it.", fields: [h("textarea", { readonly: true, rows: "12", "aria-label": title }, body)], run: async () => {}, done: "" });
  $("ask-fields").firstChild.select();
}
