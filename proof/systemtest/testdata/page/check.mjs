// Looks at the admin page in a browser. What happens to the cluster and the sidecar meanwhile, the Go test does: it is
// asked by a line on stdout and says on stdin that it is done. Ends with "ok", or with an error and exit code 1.
//
//   node check.mjs URL TOKEN [DIRECTORY SECONDS]
//
// With a directory it takes the pictures of docs/operations/page there, after as many seconds.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import { checkShown } from "./shown.mjs";

const [url, token, pictures, seconds] = process.argv.slice(2);
const patience = 60_000; // ms: for what takes as long as the machine needs
const replies = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function want(what) {
  console.log(`want ${what}`);
  assert.equal((await replies.next()).value, "done", what);
}
const note = (...words) => console.log("note", ...words);

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"],
});

// open opens the page and collects what must not be.
async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(patience);
  const page = await context.newPage();
  page.faults = [];
  page.away = false; // the sidecar is not there, and the browser says so
  page.on("pageerror", (e) => page.faults.push(`error: ${e.message}`));
  page.on("console", (m) => {
    if (["error", "warning"].includes(m.type()) && !(page.away && m.text().startsWith("Failed to load resource"))) page.faults.push(`console: ${m.text()}`);
  });
  page.on("request", (r) => { if (!r.url().startsWith(url)) page.faults.push(`request to ${r.url()}`); });
  const answer = await page.goto(url);
  assert.match(answer.headers()["content-security-policy"], /default-src 'none'/);
  await page.locator("#live.good").waitFor();
  return page;
}

const healthy = (page, n) => page.waitForFunction((n) => document.querySelectorAll(".node.good").length === n, n);
const calls = (page) => page.locator("#figures dd").first().textContent();

async function axe(page, what) {
  await page.evaluate(await readFile(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8"));
  const { violations } = await page.evaluate(() => globalThis.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
  assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.target} ${n.failureSummary}`).join("; ")}`), [], `accessibility, ${what}`);
}

// endHeld has calls wait, sees them in the table of open calls, and ends one.
async function endHeld(page) {
  const press = async (name, yes) => {
    await page.getByRole("button", { name, exact: true }).click();
    await page.getByRole("dialog").getByRole("button", { name: yes }).click();
    await page.getByRole("dialog").waitFor({ state: "hidden" });
  };
  await press("Pause calls", "Pause");
  const held = page.locator("#open tbody tr", { hasText: "paused" });
  await held.nth(9).waitFor();
  await page.locator("#open-sum", { hasText: /and \d+ more/ }).waitFor();
  assert.match(await held.first().textContent(), /^[\d.]+ s(shop|billing|reports)paused.*[0-9a-f]{8}/);
  const name = await held.first().getByRole("button").getAttribute("aria-label");
  await press(name, "End");
  await page.getByRole("button", { name, exact: true }).waitFor({ state: "detached" });
  await page.locator("#events tr", { hasText: "was ended by an operator" }).first().waitFor();
  await press("Resume calls", "Resume");
  await held.first().waitFor({ state: "detached" });
}

async function picture(page, name) {
  if (pictures) await page.evaluate(() => window.scrollTo(0, 0)); // where the head of the page belongs
  if (pictures) await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: name !== "phone", timeout: patience });
}

try {
  const page = await open();
  await healthy(page, 3);
  await page.waitForFunction(() => parseFloat(document.querySelector("#figures dd").textContent) > 0);
  if (pictures) await page.waitForTimeout(1000 * seconds);
  await picture(page, "light");
  assert.match(await page.locator("#findings").textContent(), /\w/);

  // It lives: the line of calls gets another point without a reload.
  const line = () => page.locator("#figures path:not(.area)").first().getAttribute("d");
  const before = await line();
  await page.waitForFunction((before) => document.querySelector("#figures path:not(.area)").getAttribute("d") !== before, before);
  assert.equal(await page.locator(".chart canvas").count(), 4);
  await axe(page, "light");
  note("light", await calls(page));

  // By keyboard alone: every button and chart, a dialog and the way out of it.
  const reached = new Set();
  for (let i = 0; i < 90; i++) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => { const e = document.activeElement; return e?.getAttribute("aria-label")?.replace(/:.*/, "") || e?.textContent; }));
  }
  for (const name of ["Theme: auto", "Lame duck", "Pause calls", "Resize pool", "Copy diagnostics", "Ban node 1", "Drain node 3", "Errors a second", "Sessions", "Queue"]) assert.ok(reached.has(name), `${name} cannot be reached: ${[...reached]}`);
  const ban = page.getByRole("button", { name: "Ban node 1", exact: true });
  await ban.focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog", { name: "Ban node 1" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Ban node 1");
  await page.locator("#time .plot").focus();
  await page.keyboard.press("ArrowLeft");
  await page.evaluate(() => document.activeElement.blur());

  // The theme goes by the system, and by the switch.
  const dark = await open({ colorScheme: "dark" });
  const ground = () => dark.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await healthy(dark, 3);
  const night = await ground();
  await axe(dark, "dark");
  await dark.getByRole("button", { name: "Theme: auto" }).click();
  assert.notEqual(await ground(), night);
  await dark.reload();
  await dark.getByRole("button", { name: "Theme: light" }).click(); // it was remembered
  assert.equal(await ground(), night);
  await healthy(dark, 3);
  await dark.waitForTimeout(pictures ? 3000 : 0);
  await picture(dark, "dark");
  assert.deepEqual(dark.faults, []);
  await dark.context().close();

  const phone = await open({ viewport: { width: 390, height: 844 } });
  await healthy(phone, 3);
  for (const width of [390, 320]) {
    await phone.setViewportSize({ width, height: 844 });
    // Charts take their new size in the frame after.
    const fits = await phone.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth, null, { timeout: 5000 }).catch(() => null);
    assert.ok(fits, `scrolls sideways at ${width}: ${await phone.evaluate(() => [...document.querySelectorAll("main *, header *")].filter((e) => e.getBoundingClientRect().right > innerWidth).slice(0, 5).map((e) => e.outerHTML.slice(0, 80)))}`);
  }
  await phone.setViewportSize({ width: 390, height: 844 });
  await axe(phone, "phone");
  await phone.waitForTimeout(pictures ? 3000 : 0);
  await picture(phone, "phone");
  assert.deepEqual(phone.faults, []);
  await phone.context().close();

  // What others put into the page does not run, and the page asks nobody else.
  const hostile = await open();
  const blocked = await hostile.evaluate(async () => {
    const out = {};
    try { const s = document.createElement("script"); s.textContent = "window.ran = 1"; document.body.append(s); } catch { /* as it should */ }
    try { document.body.insertAdjacentHTML("beforeend", "<b onclick='window.ran = 1'>x</b>"); out.markup = "taken"; } catch { /* as it should */ }
    try { await fetch("http://localhost:9/"); out.fetch = "sent"; } catch { /* as it should */ }
    out.refused = await new Promise((done) => { const i = new Image(); i.onload = () => done("loaded"); i.onerror = () => done(undefined); i.src = "http://127.0.0.1:9/x.png"; });
    return { ...out, ran: window.ran };
  });
  assert.deepEqual(blocked, { refused: undefined, ran: undefined });
  assert.ok(hostile.faults.some((f) => /Content Security Policy/.test(f)), hostile.faults.join("\n"));
  assert.ok(!hostile.faults.some((f) => /ERR_CONNECTION_REFUSED/.test(f)), hostile.faults.join("\n"));
  await hostile.context().close();

  await checkShown(open, axe);
  await endHeld(page);

  // A killed node is seen within two seconds; a machine with other work has three tries.
  let took;
  for (let go = 0; go < 3 && !(took <= 2000); go++) {
    if (go > 0) {
      await want("start");
      await healthy(page, 3);
    }
    await want("kill");
    const killed = Date.now();
    await page.locator('.node.bad[data-node="2"]').waitFor();
    took = Date.now() - killed;
    note(`seen after ${took} ms`);
  }
  assert.ok(took <= 2000, `a killed node was seen after ${took} ms`);
  await page.locator("#findings li", { hasText: "node 2 " }).first().waitFor();
  assert.match(await page.locator("#events").textContent(), /ejected/);
  if (pictures) await page.waitForTimeout(12_000);
  await picture(page, "down");
  await want("start");
  await healthy(page, 3);

  // Without any node every tile says so, and callers' errors are not what is red.
  await want("kill all");
  await page.waitForFunction(() => document.querySelectorAll(".node.bad").length === 3);
  await page.locator("#findings li.bad", { hasText: "NO_NODE" }).waitFor();
  await page.locator('[data-figure="service"] dd.bad').waitFor();
  if (pictures) await page.waitForTimeout(12_000);
  await picture(page, "alldown");
  await want("start all");
  await healthy(page, 3);

  // The sidecar goes away and another one comes, which asks for a token.
  page.away = true;
  await want("stop");
  await page.getByText(/Connection lost at \d\d:\d\d:\d\d/).waitFor();
  await want("serve");
  await page.locator("#live.good").waitFor();
  await page.locator("#lost").waitFor({ state: "hidden" });
  page.away = false;
  await page.getByText("a new process answers").waitFor();
  await healthy(page, 3);
  assert.equal(await page.getByRole("button", { name: /^Ban/ }).count(), 0);

  const unlock = page.getByRole("button", { name: "Unlock control" });
  const enter = async (text) => {
    await unlock.click();
    await page.getByLabel(/Token/).fill(text);
    await page.keyboard.press("Enter");
  };
  await enter("wrong");
  await page.locator("#ask-fault", { hasText: "not admin.token" }).waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await enter(token);
  await page.getByRole("button", { name: "Ban node 1", exact: true }).click();
  await page.getByLabel(/Reason/).fill("looked at");
  await page.getByRole("dialog").getByRole("button", { name: "Ban" }).click();
  await page.locator('.node.warn[data-node="1"]', { hasText: "banned" }).waitFor();
  await page.getByRole("button", { name: "Unban node 1" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Unban" }).click();
  await page.locator('.node.good[data-node="1"]').waitFor();
  assert.ok(!(await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }) + document.cookie + location)).includes(token));
  await page.reload();
  await unlock.waitFor(); // it is forgotten
  assert.deepEqual(page.faults, []);
  console.log("ok");
} catch (e) {
  console.log(`fault ${e.stack.replaceAll("\n", "\n      ")}`);
  process.exitCode = 1;
} finally {
  await browser.close();
  process.stdin.destroy();
}
