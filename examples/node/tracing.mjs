// The traceparent that joins the sidecar's spans to this app's operations. An app with an
// OpenTelemetry SDK takes the header from its propagator instead.
import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';

const current = new AsyncLocalStorage();

// Runs work under one trace: the caller's, as from an HTTP header, or a new one.
export function traced(work, parent = '') {
  const trace = /^00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$/.exec(parent || current.getStore() || '')?.[1];
  return current.run(`00-${trace ?? randomBytes(16).toString('hex')}-${randomBytes(8).toString('hex')}-01`, work);
}

// The W3C header of the current operation; a fresh one outside of any.
export function traceparent() {
  return current.getStore() ?? `00-${randomBytes(16).toString('hex')}-${randomBytes(8).toString('hex')}-01`;
}
