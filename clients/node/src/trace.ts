// The trace context that goes with a call.
import { createRequire } from 'node:module';

// Of @opentelemetry/api, as far as it is needed here.
interface OpenTelemetry {
  context: { active(): unknown };
  propagation: { inject(context: unknown, carrier: Record<string, string>): void };
}

let api: OpenTelemetry | null | undefined;

/** Headers of a call: the given traceparent, or the active context if the app has @opentelemetry/api. */
export function traceHeaders(traceparent?: string): Record<string, string> {
  if (traceparent !== undefined) return { traceparent };
  if (api === undefined) {
    try {
      api = createRequire(import.meta.url)('@opentelemetry/api') as OpenTelemetry;
    } catch {
      api = null; // it is not installed
    }
  }
  if (!api) return {};
  const carrier: Record<string, string> = {};
  api.propagation.inject(api.context.active(), carrier);
  return Object.fromEntries(Object.entries(carrier).filter(([name]) => name === 'traceparent' || name === 'tracestate'));
}
