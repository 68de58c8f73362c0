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
    { key: "pause", name: d.pool.paused ? "Resume calls" : "Pause calls", ask: pausePool },
    { key: "duck", name: duck ? "Take lame duck back" : "Lame duck", ask: lameDuck },
    { key: "drain", name: "Drain", ask: drain },
  ] : [], (x) => x.key, (x) => h("button", { type: "button", onclick: x.ask }), (el, x) => text(el, x.name));
}

function pausePool() {
  const on = !page.last().pool.paused;
  question({
    title: on ? "Pause calls" : "Resume calls", yes: on ? "Pause" : "Resume",
    text: on ? "The calls of every API wait until they are resumed or their time is up. Calls under way and open transactions finish." : "Calls that wait go on.",
    run: () => post(`/pool/${on ? "pause" : "resume"}`), done: on ? "Calls are paused." : "Calls go on.",
  });
}

function lameDuck() {
  const on = page.last().stage !== "lame duck";
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
  const n = page.last()?.nodes.nodes.find((x) => `${x.id}` === id);
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
    mayControl().then(page.draw);
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
    page.ask();
  };
  $("ask").showModal();
}
$("ask").querySelector("form").addEventListener("submit", (e) => { e.preventDefault(); running?.(); });
$("ask").addEventListener("close", () => { running = undefined; $("ask-fields").replaceChildren(); });
$("ask-no").addEventListener("click", () => $("ask").close());
