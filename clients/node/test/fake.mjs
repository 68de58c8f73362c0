// A server that answers as a test says.
import http from 'node:http';

/** Starts a server; handle(request, body, response) answers. */
export async function fake(t, handle) {
  const seen = [];
  const server = http.createServer(async (request, response) => {
    let body = '';
    if (!request.url.startsWith('/v1/ingest')) for await (const piece of request) body += piece;
    const said = { method: request.method, path: request.url, headers: request.headers, body: body === '' ? undefined : JSON.parse(body) };
    seen.push(said);
    await handle(said, response, request);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, seen };
}

export const info = { node_id: 1, attempts: 1, queue_ms: 0, acquire_ms: 0, hop_ms: 0, server_ms: 0, trace_id: '' };

/** An answer to a statement. */
export function answer(response, more = {}) {
  response.setHeader('content-type', 'application/json');
  response.end(JSON.stringify({ columns: [{ name: 'a', type: 'Int64' }], rows: [['1']], truncated: false, info, ...more }));
}

/** A refusal. */
export function refuse(response, status, code, more = {}) {
  response.writeHead(status, { 'content-type': 'application/problem+json' });
  response.end(JSON.stringify({
    type: '', title: '', detail: '', message: 'no', code, status, ydb_status: '', issues: [], safe_to_retry: false, retry_after_ms: 0, hint: '',
    trace_id: '', outcome_unknown: false, operator_hint: '', ...more,
  }));
}
