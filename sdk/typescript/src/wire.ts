// The HTTP format: which fields this client sends and reads, and what an answer means.

import type { ErrorKind, LostReason } from "./errors.js";
import { LeaseholdError } from "./errors.js";

/** How a lease shares its name. */
export type Mode = "exclusive" | "shared" | "permit";

/** An answer of the server. */
export interface Answer {
  readonly status: number;
  /** The decoded body; `undefined` if it is not JSON. */
  readonly body: unknown;
  /** `Retry-After` in milliseconds, if the answer has it. */
  readonly retryAfter?: number | undefined;
}

export interface AcquireBody {
  owner_id: string;
  ttl_ms: number;
  lease_id: string;
  mode?: Mode;
  limit?: number;
  wait_ms?: number;
  queue?: number;
  metadata?: string;
  repeat?: boolean;
}

export interface RenewBody {
  lock_name: string;
  lease_id: string;
  extend_by_ms: number;
  fencing_token: number;
}

export interface RenewManyBody {
  leases: RenewBody[];
}

export interface ReleaseBody {
  lease_id: string;
  fencing_token?: number;
  unanswered?: number;
}

export interface RevokeBody {
  now: boolean;
  fencing_token?: number;
}

interface Acquired {
  fencing_token: number;
  expires_in_ms: number;
  waited_ms: number;
}

interface Busy {
  reason: string;
  recommended_retry_ms: number;
}

interface RenewedMany {
  results: unknown[];
}

interface RenewedEach {
  status: number;
  expires_in_ms: number;
  gone: string;
}

interface Released {
  released: boolean;
}

interface Revoked {
  revoked: number;
}

interface HolderBody {
  owner_id: string;
  mode: Mode;
  limit?: number;
  fencing_token: number;
  expires_in_ms: number | null;
  acquired_at_ms: number;
  renewals: number;
  metadata: string | null;
  revoked: boolean;
}

interface WaiterBody {
  owner_id: string;
  mode: Mode;
  limit?: number;
  waited_ms: number;
}

interface LockBody {
  lock_name: string;
  held: boolean;
  version: number;
  last_fencing_token: number;
  holders: HolderBody[];
  holder_count: number;
  waiters: WaiterBody[];
  queue_length: number;
}

interface ListedBody {
  locks: LockBody[];
  next_cursor: string | null;
}

interface Problem {
  error: string;
  code: string;
}

/** The names of all fields of a body. The compiler refuses a table that has one too few or too many. */
function fields<T>(table: { [Field in keyof Required<T>]: true }): string[] {
  return Object.keys(table);
}

/** The fields that this client may send, by the schemas of `/openapi.json`. */
export const SENDS: Readonly<Record<string, string[]>> = {
  Acquire: fields<AcquireBody>({
    owner_id: true,
    ttl_ms: true,
    lease_id: true,
    mode: true,
    limit: true,
    wait_ms: true,
    queue: true,
    metadata: true,
    repeat: true,
  }),
  RenewMany: fields<RenewManyBody>({ leases: true }),
  Renew: fields<RenewBody>({ lock_name: true, lease_id: true, extend_by_ms: true, fencing_token: true }),
  Release: fields<ReleaseBody>({ lease_id: true, fencing_token: true, unanswered: true }),
  Revoke: fields<RevokeBody>({ now: true, fencing_token: true }),
};

/** The fields that this client reads, by the schemas of `/openapi.json`. */
export const READS: Readonly<Record<string, string[]>> = {
  Acquired: fields<Acquired>({ fencing_token: true, expires_in_ms: true, waited_ms: true }),
  Busy: fields<Busy>({ reason: true, recommended_retry_ms: true }),
  RenewedMany: fields<RenewedMany>({ results: true }),
  RenewedEach: fields<RenewedEach>({ status: true, expires_in_ms: true, gone: true }),
  Released: fields<Released>({ released: true }),
  Revoked: fields<Revoked>({ revoked: true }),
  Lock: fields<LockBody>({
    lock_name: true,
    held: true,
    version: true,
    last_fencing_token: true,
    holders: true,
    holder_count: true,
    waiters: true,
    queue_length: true,
  }),
  Holder: fields<HolderBody>({
    owner_id: true,
    mode: true,
    limit: true,
    fencing_token: true,
    expires_in_ms: true,
    acquired_at_ms: true,
    renewals: true,
    metadata: true,
    revoked: true,
  }),
  Waiter: fields<WaiterBody>({ owner_id: true, mode: true, limit: true, waited_ms: true }),
  Listed: fields<ListedBody>({ locks: true, next_cursor: true }),
  Problem: fields<Problem>({ error: true, code: true }),
};

/** The routes that this client uses. */
export const PATHS: readonly string[] = [
  "POST /v1/locks/{name}/acquire",
  "POST /v1/locks/{name}/release",
  "POST /v1/locks/{name}/revoke",
  "GET /v1/locks/{name}",
  "GET /v1/locks",
  "POST /v1/renew",
  "GET /healthz",
];

/** The code when a revocation names one lease and that lease is gone. */
export const HOLDER_CHANGED = "HOLDER_CHANGED";

/** The kinds of error that the server's codes stand for. */
export const KINDS: Readonly<Record<string, ErrorKind>> = {
  INVALID_ARGUMENT: "invalid_argument",
  UNAVAILABLE: "unavailable",
  DRAINING: "unavailable",
  ABORTED: "unavailable",
  BUSY_RETRY: "overloaded",
  NETWORK_TIMEOUT: "network_timeout",
  AUTH_FAILED: "auth_failed",
  RATE_LIMITED: "rate_limited",
  TIMEOUT: "timeout",
  LOST: "lost",
  MISMATCH: "mismatch",
  DEADLOCK: "deadlock",
  UNSUPPORTED: "unsupported",
  INTERNAL: "internal",
};

/** The kind of error of an answer, by its status and the code in it. */
export function kindOf(status: number, code: unknown): ErrorKind {
  if (status === 401 || status === 403) return "auth_failed";
  if (status === 429) return "rate_limited";
  const known = typeof code === "string" && Object.hasOwn(KINDS, code) ? KINDS[code] : undefined;
  if (known !== undefined) return known;
  if (status === 404 || status === 405) return "unsupported";
  return status >= 400 && status < 500 ? "invalid_argument" : "unavailable";
}

/** The error that an answer is. */
export function failure(answer: Answer): LeaseholdError {
  const problem = object<Problem>(answer.body) ?? {};
  const kind = kindOf(answer.status, problem.code);
  const retryAfter = answer.retryAfter;
  if (typeof problem.error === "string") return new LeaseholdError(kind, problem.error, { retryAfter });
  const message =
    kind === "unsupported"
      ? "there is no leasehold server at this address; check host, port and path"
      : `the server answered with status ${String(answer.status)}`;
  return new LeaseholdError(kind, message, { retryAfter });
}

/** What an attempt to acquire has led to. */
export type Attempt =
  | { readonly is: "granted"; readonly fence: number; readonly leftMs: number; readonly waitedMs: number }
  | { readonly is: "busy"; readonly retryMs: number }
  | { readonly is: "gone" };

/** Reads the answer to an acquire; throws the error that it is. */
export function readAttempt(answer: Answer): Attempt {
  if (answer.status === 200) {
    const body = decoded<Acquired>(answer);
    const [fence, leftMs, waitedMs] = [body.fencing_token, body.expires_in_ms, body.waited_ms];
    return { is: "granted", fence: whole(fence), leftMs: whole(leftMs), waitedMs: whole(waitedMs) };
  }
  const body = object<Busy>(answer.body);
  if (answer.status === 409 && (body?.reason === "HELD" || body?.reason === "WAIT_TIMEOUT")) {
    return { is: "busy", retryMs: whole(body.recommended_retry_ms) };
  }
  if (answer.status === 410) return { is: "gone" };
  throw failure(answer);
}

/** What a renewal has led to; anything else is an error of the whole batch or of the one lease. */
export type Renewal =
  | { readonly is: "held"; readonly leftMs: number }
  | { readonly is: "gone"; readonly why: LostReason }
  | { readonly is: "failed" };

const GONE: readonly LostReason[] = ["expired", "not_found", "superseded", "revoked"];

/** Reads the answers to a batch of renewals, one for each; nothing if the answer is no such list. */
export function readRenewals(answer: Answer, count: number): Renewal[] | undefined {
  const results = answer.status === 200 ? object<RenewedMany>(answer.body)?.results : undefined;
  if (!Array.isArray(results) || results.length !== count) return undefined;
  return results.map((item: unknown) => {
    const body = object<RenewedEach>(item);
    if (body?.status === 200 && isWhole(body.expires_in_ms)) return { is: "held", leftMs: body.expires_in_ms };
    if (body?.status !== 410) return { is: "failed" };
    return { is: "gone", why: GONE.find((why) => why === body.gone) ?? "not_found" };
  });
}

/** Reads the answer to a release: whether there was anything to release. */
export function readRelease(answer: Answer): boolean {
  if (answer.status !== 200) throw failure(answer);
  return decoded<Released>(answer).released === true;
}

/** Reads the answer to a revocation: how many leases it was about. */
export function readRevoke(answer: Answer): number {
  if (answer.status === 409 && object<Problem>(answer.body)?.code === HOLDER_CHANGED) return 0;
  if (answer.status !== 200) throw failure(answer);
  return whole(decoded<Revoked>(answer).revoked);
}

/** A holder of a lock. */
export interface HolderInfo {
  readonly owner: string;
  readonly mode: Mode;
  /** How many permits there are, for a permit. */
  readonly limit?: number;
  readonly fence: number;
  /** How long the lease lasts unless renewed, in milliseconds. */
  readonly expiresIn: number | null;
  /** When it was granted. */
  readonly acquiredAt: Date;
  /** How often it was renewed. */
  readonly renewals: number;
  readonly metadata: string | null;
  /** Whether the server refuses to renew it. */
  readonly revoked: boolean;
}

/** A client that waits for a lock. */
export interface WaiterInfo {
  readonly owner: string;
  readonly mode: Mode;
  /** How many permits there are, for a permit. */
  readonly limit?: number;
  /** How long it has waited, in milliseconds. */
  readonly waited: number;
}

/** A lock with its holders and waiters. */
export interface LockInfo {
  readonly name: string;
  readonly held: boolean;
  /** Counts every change of the lock. */
  readonly version: number;
  /** The fence of the latest grant. */
  readonly lastFence: number;
  /** The oldest holders, at most a hundred. */
  readonly holders: readonly HolderInfo[];
  readonly holderCount: number;
  /** The first waiters, at most a hundred. */
  readonly waiters: readonly WaiterInfo[];
  readonly queueLength: number;
}

/** Reads the answer about one lock. */
export function readLock(answer: Answer): LockInfo {
  if (answer.status !== 200) throw failure(answer);
  return lockInfo(decoded<LockBody>(answer));
}

/** Reads one page of a list. */
export function readPage(answer: Answer): { locks: LockInfo[]; next: string | undefined } {
  if (answer.status !== 200) throw failure(answer);
  const body = decoded<ListedBody>(answer);
  if (!Array.isArray(body.locks)) throw odd();
  return { locks: body.locks.map(lockInfo), next: body.next_cursor ?? undefined };
}

function lockInfo(body: Partial<LockBody>): LockInfo {
  const { lock_name: name, holders, waiters } = body;
  if (typeof name !== "string" || !Array.isArray(holders) || !Array.isArray(waiters)) throw odd();
  return {
    name,
    held: body.held === true,
    version: whole(body.version),
    lastFence: whole(body.last_fencing_token),
    holders: holders.map((holder) => ({
      owner: holder.owner_id,
      mode: holder.mode,
      ...(holder.limit === undefined ? {} : { limit: holder.limit }),
      fence: holder.fencing_token,
      expiresIn: holder.expires_in_ms,
      acquiredAt: new Date(holder.acquired_at_ms),
      renewals: holder.renewals,
      metadata: holder.metadata,
      revoked: holder.revoked,
    })),
    holderCount: Math.max(body.holder_count ?? 0, holders.length),
    waiters: waiters.map((waiter) => ({
      owner: waiter.owner_id,
      mode: waiter.mode,
      ...(waiter.limit === undefined ? {} : { limit: waiter.limit }),
      waited: waiter.waited_ms,
    })),
    queueLength: whole(body.queue_length),
  };
}

function object<T>(value: unknown): Partial<T> | undefined {
  return typeof value === "object" && value !== null ? value : undefined;
}

function decoded<T>(answer: Answer): Partial<T> {
  const body = object<T>(answer.body);
  if (body === undefined) throw odd();
  return body;
}

function isWhole(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}

function whole(value: unknown): number {
  if (!isWhole(value)) throw odd();
  return value;
}

function odd(): LeaseholdError {
  const message = "cannot decode the answer; check that this is a leasehold server of this version";
  return new LeaseholdError("internal", message);
}
