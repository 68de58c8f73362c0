// Errors of calls. Each class is a SidecarError, whose two answers decide what an app does next.

/** An issue of YDB, as it stands in an error. */
export interface Issue {
  message: string;
  code: number;
  /** 0 fatal, 1 error, 2 warning, 3 info */
  severity: number;
  /** Row of the text, from 1; 0 is unknown. */
  row: number;
  column: number;
  issues: Issue[];
}

/** What an error says, as the sidecar sent it. */
export interface ErrorFields {
  code: string;
  message: string;
  status?: number | undefined;
  ydbStatus?: string | undefined;
  issues?: Issue[] | undefined;
  safeToRetry?: boolean | undefined;
  outcomeUnknown?: boolean | undefined;
  retryAfter?: number | undefined;
  traceId?: string | undefined;
  hint?: string | undefined;
  operatorHint?: string | undefined;
  cause?: unknown;
}

/**
 * A call failed. Ask in this order:
 *
 * - `safeToRetry`: nothing was kept, or the call is idempotent. Send it again; inside a transaction, run all of it again.
 * - `outcomeUnknown`: it may have run. Read back, or repeat only what may happen twice.
 * - Neither: it would fail again as it is, or an operator ended it.
 */
export class SidecarError extends Error {
  /** Stable code such as `YDB_ABORTED`; docs/reference/errors.md lists them. */
  readonly code: string;
  /** HTTP status of the code; 0 if the sidecar did not answer. */
  readonly status: number;
  /** Status of YDB's own answer; empty if the error is the sidecar's. */
  readonly ydbStatus: string;
  readonly issues: Issue[];
  readonly safeToRetry: boolean;
  readonly outcomeUnknown: boolean;
  /** Milliseconds to wait before the next try; 0 if no pause is advised. */
  readonly retryAfter: number;
  readonly traceId: string;
  /** What the caller can do. */
  readonly hint: string;
  /** What the operator of the sidecar can do. */
  readonly operatorHint: string;

  constructor(fields: ErrorFields) {
    super(`${fields.code}: ${fields.message}`, fields.cause === undefined ? undefined : { cause: fields.cause });
    this.name = new.target.name;
    this.code = fields.code;
    this.status = fields.status ?? 0;
    this.ydbStatus = fields.ydbStatus ?? '';
    this.issues = fields.issues ?? [];
    this.safeToRetry = fields.safeToRetry ?? false;
    this.outcomeUnknown = fields.outcomeUnknown ?? false;
    this.retryAfter = fields.retryAfter ?? 0;
    this.traceId = fields.traceId ?? '';
    this.hint = fields.hint ?? '';
    this.operatorHint = fields.operatorHint ?? '';
  }
}

/** The sidecar did not answer: it is not there, it was restarted, the connection broke, or something else is at its address. */
export class ConnectionError extends SidecarError {}

/** The deadline of the call ended first. */
export class DeadlineError extends SidecarError {}

/** More calls than the sidecar, the app's quota or the database can take now (429). */
export class OverloadError extends SidecarError {}

/** A row with this key, or an object of this name, exists. */
export class AlreadyExistsError extends SidecarError {}

/** A statement of a list gave another number of rows than `expect` says; nothing of the list was kept. */
export class ExpectationError extends SidecarError {}

/** The row is not as `ifMatch` or `ifNoneMatch` asks; nothing was written. */
export class ConditionError extends SidecarError {}

/** Makes the error of the class that its code and status have. */
export function errorOf(fields: ErrorFields): SidecarError {
  const { code, status } = fields;
  if (code === 'DEADLINE_EXCEEDED') return new DeadlineError(fields);
  if (code === 'EXPECTATION_FAILED') return new ExpectationError(fields);
  if (code === 'CONDITION_FAILED') return new ConditionError(fields);
  if (code === 'YDB_ALREADY_EXISTS' || (code === 'YDB_PRECONDITION_FAILED' && status === 409)) return new AlreadyExistsError(fields);
  if (status === 429) return new OverloadError(fields);
  return new SidecarError(fields);
}

/** Reads an error as JSON and the message `sidecar.v1.Error` have it. */
export function problem(said: Record<string, any>): SidecarError {
  return errorOf({
    code: said.code, message: said.message, status: Number(said.status), ydbStatus: said.ydb_status, issues: said.issues ?? [],
    safeToRetry: said.safe_to_retry, outcomeUnknown: said.outcome_unknown, retryAfter: Number(said.retry_after_ms),
    traceId: said.trace_id, hint: said.hint, operatorHint: said.operator_hint,
  });
}

/**
 * The error of a call that the sidecar did not answer.
 *
 * @param keeps what the call may have kept: `nothing` (it only reads, or its transaction stays open), `unknown`, or `twice` (it may
 *   have run, and may run again)
 */
export function noAnswer(what: string, keeps: Keeps, cause?: unknown): ConnectionError {
  return new ConnectionError({
    code: keeps === 'nothing' ? 'SIDECAR_AWAY' : 'OUTCOME_UNKNOWN', message: what, cause,
    safeToRetry: keeps !== 'unknown', outcomeUnknown: keeps !== 'nothing',
    hint: keeps === 'unknown' ? 'Read back whether it was done, or repeat it only if it may happen twice.'
      : keeps === 'twice' ? 'Send it again.' : 'Check that the sidecar runs and that the address is right, then send it again.',
  });
}

/** The error of an answer of something else than a sidecar, which has certainly run nothing. */
export function notASidecar(where: string, what: string, status = 0, cause?: unknown): ConnectionError {
  return new ConnectionError({
    code: 'NOT_A_SIDECAR', message: `what answers at ${where} is no sidecar: ${what}`, status, cause,
    hint: 'Check the address: the HTTP API (http://, port 7401) and the gRPC API (grpc://, port 7400) of the sidecar have different ports.',
  });
}

/** The error of an answer whose value this client cannot read. */
export function unreadable(what: string, cause: unknown): SidecarError {
  return new SidecarError({
    code: 'ANSWER_UNREADABLE', message: what, cause, hint: 'Read the value in another form: kv(table, \'text\') or kv(table, \'bytes\').',
  });
}

/** The error of a call whose time ended before the sidecar answered. */
export function timeOver(what: string, keeps: Keeps): DeadlineError {
  return new DeadlineError({
    code: 'DEADLINE_EXCEEDED', message: `${what}: no answer within the timeout`,
    safeToRetry: keeps !== 'unknown', outcomeUnknown: keeps !== 'nothing',
  });
}

/** What a call without an answer may have kept. */
export type Keeps = 'nothing' | 'unknown' | 'twice';
