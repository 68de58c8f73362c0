// What is repeated, when, and for how long.
import { SidecarError } from './errors.js';

/** How long work is repeated. */
export interface RetryOptions {
  /** Milliseconds for all tries together; 30,000 unless set. */
  timeout?: number | undefined;
  /** The work may happen twice, so it is also repeated after an outcome that is unknown. */
  idempotent?: boolean | undefined;
  /** Ends the work and its pauses. */
  signal?: AbortSignal | undefined;
  /** Called with each error that another try follows, and the pause before it in milliseconds. */
  onRetry?: ((error: SidecarError, pause: number) => void) | undefined;
}

/** One try of work that is repeated. */
export interface Attempt {
  /** From 1. */
  readonly number: number;
  /** Milliseconds that are left for this try and all further ones. */
  left(): number;
}

const firstPause = 10;
const longestPause = 1000;

/** Reports whether the work that failed with this error may be run again. */
export function repeatable(error: unknown, idempotent = false): error is SidecarError {
  return error instanceof SidecarError && (error.safeToRetry || (idempotent && error.outcomeUnknown));
}

/**
 * Runs work until it succeeds, fails for good, or its time is over. It is repeated after an error that is safe to retry, and never
 * after an unknown outcome unless `idempotent` is set. Pauses are random, grow, and are never shorter than the error's `retryAfter`. If
 * the time ends within the next pause, the last error is thrown at once.
 */
export async function retry<T>(work: (attempt: Attempt) => Promise<T>, options: RetryOptions = {}): Promise<T> {
  const { idempotent = false, signal } = options;
  const backoff = new Backoff(options);
  for (let number = 1; ; number++) {
    signal?.throwIfAborted();
    try {
      return await work({ number, left: () => backoff.left() });
    } catch (error) {
      if (signal?.aborted || !repeatable(error, idempotent)) throw error;
      await backoff.wait(error);
    }
  }
}

/** Growing, random pauses within a span of time. */
export class Backoff {
  readonly #end: number;
  readonly #options: RetryOptions;
  #most = firstPause;

  constructor(options: RetryOptions) {
    this.#end = Date.now() + (options.timeout ?? 30_000);
    this.#options = options;
  }

  left(): number {
    return this.#end - Date.now();
  }

  /** Pauses before the next try; throws the error if the time would be over then. */
  async wait(error: SidecarError): Promise<void> {
    const { signal, onRetry } = this.#options;
    const pause = error.retryAfter + Math.random() * this.#most;
    this.#most = Math.min(2 * this.#most, longestPause);
    if (pause >= this.left()) throw error;
    onRetry?.(error, pause);
    await sleep(pause, signal);
  }
}

function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const leave = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', leave);
      resolve();
    }, ms);
    signal?.addEventListener('abort', leave, { once: true });
  });
}
