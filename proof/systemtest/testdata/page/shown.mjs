// What the page shows of states that a small cluster does not get into by itself: the answers of a real sidecar are
// changed on their way to the page.
import assert from "node:assert/strict";

const bodies = (list) => list.map((e) => e.replace(/\s+/g, " ").trim());
const texts = async (page, selector) => bodies(await page.locator(selector).allTextContents());

// shown opens the page with answers that change, which may be replaced by set, has changed.
async function shown(open, options) {
  const page = await open(options);
  let change = () => {};
  await page.route("**/state/page*", async (route) => {
    const d = await route.fetch().then((answer) => answer.json()).catch(() => null); // null: the page is closed
    if (!d) return;
    change(d);
    await route.fulfill({ json: d });
  });
  return { page, set: (f) => { change = f; } };
}

const long = "node 2 (ydb-2.ydb-cluster.production.svc.cluster.local:2136) does not answer for 12 s: CreateSession: connection_refused_by_the_peer_at_the_other_end_of_the_wire; 7 transport errors in a row; work goes to the other nodes and transactions on it are lost";
const finding = (d, code, node, more = {}) => ({ code, severity: "problem", text: long, do: `sidecar why ${node} has the evidence.`, node, since: new Date(d.at_ms - 60_000).toISOString(), runbook: `https://docs.example/runbook.md#${code.toLowerCase()}`, ...more });
const wide = (page) => page.evaluate(() => [...document.querySelectorAll("main *, header *")].filter((e) => e.getBoundingClientRect().right > innerWidth).slice(0, 5).map((e) => e.outerHTML.slice(0, 80)));
const fits = (page) => page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth, null, { timeout: 5000 });

// point adds a point to the history with errors of these kinds, a second.
function errors(d, kinds) {
  const n = Math.max(d.history.last + 1 - d.history.first, 0);
  d.history.errors = Object.fromEntries(Object.entries(kinds).map(([kind, v]) => [kind, new Array(n).fill(v)]));
  d.history.caller_errors = Object.keys(kinds).filter((kind) => kind.startsWith("YDB_GENERIC") || kind.startsWith("BAD_"));
}

const legendOf = (page) => page.evaluate(() => Object.fromEntries([...document.querySelectorAll("#errors .legend li")].map((li) => [li.children[1].textContent, li.firstChild.className])));

export async function checkShown(open, axe) {
  await colors(open);
  await findings(open, axe);
  await events(open);
  await nodes(open, axe);
  await apps(open);
  await openCalls(open, axe);
  await diagnostics(open);
}

// A kind of error keeps its colour while others come, and errors of callers are not red.
async function colors(open) {
  const { page, set } = await shown(open);
  set((d) => errors(d, { SHED_DEADLINE: 2, YDB_GENERIC_ERROR: 1 }));
  await page.reload();
  await page.locator("#errors .legend li", { hasText: "SHED_DEADLINE" }).waitFor();
  const before = await legendOf(page);
  set((d) => errors(d, { SHED_DEADLINE: 1, YDB_GENERIC_ERROR: 5, BAD_REQUEST: 3, DRAINING: 1, TX_LOST: 1 }));
  await page.locator("#errors .legend li", { hasText: "TX_LOST" }).waitFor();
  const after = await legendOf(page);
  for (const [kind, color] of Object.entries(before)) assert.equal(after[kind], color, `${kind} changed its colour`);
  assert.equal(new Set(Object.values(after)).size, 5, `kinds share a colour: ${JSON.stringify(after)}`);
  for (const [kind, color] of Object.entries(after)) assert.match(color, /GENERIC|BAD_/.test(kind) ? /^k c\d$/ : /^k s\d$/, kind);

  // So it is with the errors of statements.
  const statement = (statuses) => (d) => {
    errors(d, { SHED_DEADLINE: 1, YDB_GENERIC_ERROR: 1 });
    const failed = Object.values(statuses).reduce((a, b) => a + b, 0);
    d.statements = [{ digest: "abcdef012345", kind: "SELECT", app: "shop", texts: 1, last_minute: { calls: 1200, failed, statuses, p50_ms: 1, p99_ms: 2, took_ms: 3 } }];
  };
  const failures = page.locator("#statements tbody tr", { hasText: "abcdef012345" }).locator("td");
  set(statement({ YDB_GENERIC_ERROR: 7 }));
  await page.reload();
  await failures.nth(4).getByText("7").waitFor();
  assert.equal(await failures.nth(3).textContent(), "0");
  assert.deepEqual([await failures.nth(3).getAttribute("class"), await failures.nth(4).getAttribute("class")], ["r ", "r wide"]);
  set(statement({ YDB_GENERIC_ERROR: 7, SHED_DEADLINE: 3 }));
  await page.locator("#statements td.bad", { hasText: /^3$/ }).waitFor();
  assert.equal(await failures.nth(4).textContent(), "7");
  for (const width of [390, 320]) {
    await page.setViewportSize({ width, height: 844 });
    assert.ok(await fits(page).catch(() => false), `the statements push the page sideways at ${width}: ${await wide(page)}`);
  }
  await page.setViewportSize({ width: 1360, height: 900 });

  // Only errors of the service are red in the figures.
  set((d) => { d.history.all.failed = d.history.all.failed.map(() => 4); d.history.all.caller = d.history.all.caller.map(() => 4); });
  await page.reload();
  const figure = (name) => page.locator(`[data-figure="${name}"] dd`);
  await page.waitForFunction(() => document.querySelector('[data-figure="caller"] dd > span')?.textContent === "4.0");
  assert.match(await figure("service").textContent(), /^0 /);
  assert.equal(await figure("service").getAttribute("class") ?? "", "");
  set((d) => { d.history.all.failed = d.history.all.failed.map(() => 5); d.history.all.caller = d.history.all.caller.map(() => 4); });
  await page.reload();
  await page.locator('[data-figure="service"] dd.bad').waitFor();
  assert.deepEqual(page.faults, []);
  await page.context().close();
}

// Long findings stay in their box, say how often they came back and lead to the runbook.
async function findings(open, axe) {
  const { page, set } = await shown(open);
  set((d) => {
    d.findings = [finding(d, "NODE_DEAD", 2), ...Array.from({ length: 9 }, (_, i) => finding(d, "HELD_LONG", i + 11, { app: `app${i}` }))];
    d.events = [1, 2, 3, 4].map((i) => ({ seq: 1e6 - i, time: new Date(d.at_ms - i * 20_000).toISOString(), node: 2, kind: "finding", to: "NODE_DEAD", reason: long }));
  });
  await page.locator("#findings li", { hasText: "NODE_DEAD ×4" }).waitFor();
  assert.equal(await page.locator("#findings li").count(), 4);
  assert.match((await texts(page, "#findings li")).at(-1), /7 more of this kind: nodes 13, 14/);
  const link = page.locator("#findings li a").first();
  assert.equal(await link.getAttribute("href"), "https://docs.example/runbook.md#node_dead");
  assert.match(await link.getAttribute("rel"), /noreferrer/);
  for (const width of [1360, 700, 390, 320]) {
    await page.setViewportSize({ width, height: 844 });
    assert.ok(await fits(page).catch(() => false), `a long finding pushes the page sideways at ${width}`);
    const within = await page.evaluate(() => [...document.querySelectorAll("#findings li")].every((li) => [...li.children].every((c) => c.getBoundingClientRect().right <= li.getBoundingClientRect().right)));
    assert.ok(within, `a finding leaves its box at ${width}`);
  }
  await axe(page, "findings");
  assert.deepEqual(page.faults, []);
  await page.context().close();
}

// What an operator takes back reads as its end, and what comes again and again is one row.
async function events(open) {
  const { page, set } = await shown(open);
  set((d) => {
    const at = (s, e) => ({ seq: 1e6 - s, time: new Date(d.at_ms - s * 1000).toISOString(), reason: "by an operator", ...e });
    d.events = [
      at(1, { node: 1, kind: "ban", from: "banned until 2026-11-22T10:12:16Z" }), at(2, { node: 1, kind: "ban", to: "banned until 2026-11-22T10:12:16Z" }),
      at(3, { node: 3, kind: "drain", from: "drained" }), at(4, { node: 3, kind: "drain", to: "drained" }),
      ...[5, 15, 25].flatMap((s) => [at(s, { node: 2, kind: "finding", from: "NODE_SLOW", reason: "node 2 is slow" }), at(s + 5, { node: 2, kind: "finding", to: "NODE_SLOW", reason: "node 2 is slow" })]),
    ];
  });
  await page.locator("#events tr", { hasText: "ban ended" }).waitFor();
  const rows = await texts(page, "#events tbody tr");
  assert.equal(rows.length, 5, rows.join("\n"));
  assert.match(rows[0], /node 1ban ended by an operator/);
  assert.match(rows[1], /node 1banned until/);
  assert.match(rows[2], /node 3drain ended/);
  assert.match(rows[4], /node 2NODE_SLOW ended ×3 node 2 is slow/);
  await page.context().close();
}

// The worst node comes first, and many nodes are a table that can be acted on.
async function nodes(open, axe) {
  const { page, set } = await shown(open);
  const ill = (n) => Object.assign(n, { health: "ejected", unreachable: true, reason: "connection refused", next: "tried again in 3 s", since: new Date().toISOString() });
  set((d) => ill(d.nodes.nodes.find((n) => n.id === 3)));
  await page.locator('.node.bad[data-node="3"]').waitFor();
  assert.match((await texts(page, "#nodes h4"))[0], /Node 3/);
  set((d) => {
    const one = d.nodes.nodes[0];
    d.nodes.nodes = Array.from({ length: 14 }, (_, i) => ({ ...one, id: i + 1, address: `ydb-${i + 1}.ydb-cluster.production.svc.cluster.local:2136`, zone: `zone-${i % 3}` }));
    ill(d.nodes.nodes[8]);
    d.nodes.nodes[4].banned = true;
  });
  await page.locator("#nodes-table tbody tr").nth(13).waitFor();
  assert.equal(await page.locator("#nodes article").count(), 0);
  const rows = await texts(page, "#nodes-table tbody tr");
  assert.match(rows[0], /^9unreachable.*connection refused/);
  assert.match(rows[1], /^5banned/);
  assert.match(rows[2], /^1healthy/);
  await page.getByRole("button", { name: "Ban node 9", exact: true }).click();
  await page.getByRole("dialog", { name: "Ban node 9" }).waitFor();
  await page.keyboard.press("Escape");
  for (const width of [1360, 390, 320]) {
    await page.setViewportSize({ width, height: 844 });
    assert.ok(await fits(page).catch(() => false), `the table of nodes pushes the page sideways at ${width}: ${await wide(page)}`);
  }
  await axe(page, "table of nodes");
  assert.deepEqual(page.faults, []);
  await page.context().close();
}

// A flood is shown with the app that floods.
async function apps(open) {
  const { page, set } = await shown(open);
  const app = (name, more) => ({ app: name, open: 1, in_use: 1, waiting: 0, served: 10, refused: {}, wait_p99_ms: 2, weight: 1, ...more });
  let refused = 0;
  set((d) => {
    refused += 100;
    d.apps = [app("flooder", { waiting: 235, in_use: 20, refused: { queue_full: refused } }), app("shop", { waiting: 15 })];
  });
  const first = page.locator("#apps tbody tr", { hasText: "flooder" });
  await first.filter({ hasText: "94 %" }).waitFor();
  await page.waitForFunction(() => parseFloat([...document.querySelectorAll("#apps tr")].find((r) => /flooder/.test(r.textContent)).children[5].textContent) > 10);
  assert.equal(await first.locator("td").nth(4).textContent(), "235");
  assert.deepEqual(page.faults, []);
  await page.context().close();
}

// The oldest open calls say whose they are, what they wait for and how to end them.
async function openCalls(open, axe) {
  const { page, set } = await shown(open);
  const trace = (n) => n.toString(16).padStart(32, "abcd");
  const call = (n, more) => ({ call: `p${n}`, api: "grpc", name: "ExecuteQuery", app: "shop", phase: "node", age_ms: 100_000 - n, node_id: 2, digest: "abcdef012345", trace_id: trace(n), ...more });
  set((d) => {
    d.open_calls.calls = [
      call(1, { app: "reports-of-the-accounting-department-that-has-a-long-name", name: "/Ydb.Table.V1.TableService/StreamExecuteScanQuery", api: "ydb" }),
      call(2, { phase: "queue", node_id: undefined, app: undefined, trace_id: undefined, digest: undefined }),
      ...Array.from({ length: 8 }, (_, i) => call(i + 3, { phase: "answer", age_ms: 500 - i })),
    ];
    d.open_calls.more = 31;
  });
  await page.locator("#open-sum", { hasText: "and 31 more" }).waitFor();
  const rows = await texts(page, "#open tbody tr");
  assert.equal(rows.length, 10);
  assert.match(rows[0], /^100 sreports-of.*node2\/Ydb\.Table.* ydbabcdef012345abcdabcd/);
  assert.match(rows[1], /^100 squeueExecuteQuery grpc/);
  assert.equal(await page.locator("#open tbody tr").nth(1).locator("td").nth(2).getAttribute("class"), "warn");
  assert.equal(await page.locator("#open tbody a").first().getAttribute("href"), `https://traces.example/trace/${trace(1)}`);
  assert.match(await page.locator("#open-guide").getAttribute("href"), /\/docs\/how-to\/my-app-hangs\.md$/);
  await page.getByText("sidecar kill-call TRACE").waitFor();
  for (const width of [1360, 700, 390, 320]) {
    await page.setViewportSize({ width, height: 844 });
    assert.ok(await fits(page).catch(() => false), `the open calls push the page sideways at ${width}: ${await wide(page)}`);
    await axe(page, `open calls at ${width}`);
  }
  await page.setViewportSize({ width: 1360, height: 900 });

  // A call is ended only after a question.
  const posts = [];
  await page.route(/\/calls\//, (route) => { posts.push(`${route.request().method()} ${route.request().url().replace(/.*?\/\/[^/]+/, "")}`); return route.fulfill({ json: {} }); });
  await page.getByRole("button", { name: "End call p3 of app shop" }).click();
  assert.deepEqual(posts, []);
  await page.getByRole("dialog", { name: "End call p3" }).getByRole("button", { name: "End" }).click();
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  assert.deepEqual(posts, ["POST /calls/p3/kill"]);

  set((d) => Object.assign(d.open_calls, { calls: [], more: 0 }));
  await page.getByText("No call has been open for 0.1 s.").waitFor();
  await page.locator("#open").waitFor({ state: "hidden" });
  assert.deepEqual(page.faults, []);
  await page.context().close();
}

// One text for a ticket, without statements and secrets, from a page that says which sidecar it is.
async function diagnostics(open) {
  const { page, set } = await shown(open, { permissions: ["clipboard-read", "clipboard-write"] });
  set((d) => {
    Object.assign(d, { host: "node-7", pod: "shop-5d9f-abcde", version: "9.8.7" });
    d.findings = [finding(d, "NODE_DEAD", 2)];
    d.statements = [{ ...(d.statements[0] ?? { last_minute: { calls: 1, failed: 0, p50_ms: 1, p99_ms: 1, took_ms: 1 }, texts: 1, app: "shop", kind: "SELECT" }), digest: "abcdef012345", text: "SELECT a_secret_column FROM t" }];
    d.transactions = [{ node_id: 1, session: "5e551012", app: "shop", trace_id: "", mode: "serializable_rw", age_ms: 10, expires_ms: 1000, busy: false }];
    d.open_calls.calls = [{ call: "p1", api: "http", name: "query", app: "shop", phase: "queue", age_ms: 12_300, digest: "abcdef012345" }];
    d.nodes.discovery.failures = 3;
    Object.assign(d.memory, { limit: 256 * 1048576, used: 200 * 1048576, tight: true });
    Object.assign(d.retries, { left: 0.5, burst: 24 });
  });
  await page.locator("#where", { hasText: "shop-5d9f-abcde on node-7" }).waitFor();
  assert.match(await page.title(), /shop-5d9f-abcde ydb-sidecar 9\.8\.7 \/local/);
  assert.match((await texts(page, "#facts > div")).join("\n"), /Discovery.*failed 3 times.*\nRetry budget0 of 24 retries\nMemory200 MiB of 256 MiB, short/);
  await page.getByRole("button", { name: "Copy diagnostics" }).click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  const text = await page.evaluate(() => navigator.clipboard.readText());
  for (const want of ["ydb-sidecar 9.8.7", "Pod: shop-5d9f-abcde", "NODE_DEAD since", "\nOPEN CALLS\n  12 s query http, app shop, queue\n", "\nPOOL\n", "\nNODES\n  ", "\nEVENTS\n", "\nAPPS\n"]) assert.ok(text.includes(want), `no ${want} in ${text}`);
  for (const not of ["a_secret_column", "abcdef012345", "5e551012"]) assert.ok(!text.includes(not), `${not} in ${text}`);

  // A page that may not write to the clipboard shows the text.
  await page.evaluate(() => { navigator.clipboard.writeText = () => Promise.reject(new Error("no")); });
  await page.getByRole("button", { name: /Copy diagnostics/ }).click();
  assert.match(await page.locator("#ask textarea").inputValue(), /ydb-sidecar 9\.8\.7/);
  await page.getByRole("button", { name: "Close" }).click();
  await page.getByRole("dialog").waitFor({ state: "hidden" });

  // A session is killed, and the pool resized, only after a question.
  const posts = [];
  await page.route(/\/(sessions|pool)\//, (route) => { posts.push(`${route.request().method()} ${route.request().url().replace(/.*?\/\/[^/]+/, "")}`); return route.fulfill({ json: {} }); });
  await page.getByRole("button", { name: "Kill session 5e551012 of app shop" }).click();
  assert.deepEqual(posts, []);
  await page.getByRole("dialog").getByRole("button", { name: "Kill" }).click();
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  await page.getByRole("button", { name: "Resize pool" }).click();
  await page.getByLabel(/pool\.max/).fill("30");
  await page.getByRole("dialog").getByRole("button", { name: "Resize" }).click();
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  assert.deepEqual(posts, ["POST /sessions/5e551012/kill", "POST /pool/resize?max=30&min=0"]);
  assert.deepEqual(page.faults, []);
  await page.context().close();
}
