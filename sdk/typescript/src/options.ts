// The options of a client and of its locks, checked before anything is sent.

import { Buffer } from "node:buffer";
import { hostname } from "node:os";

import type { AddressOptions } from "./address.js";
import type { LeaseholdError } from "./errors.js";
import { invalid } from "./errors.js";
import { DEFAULT_TTL, MAX_TTL, MAX_WAIT_PER_CALL, MIN_TTL, WAIT_PER_CALL } from "./limits.js";

const MAX_OWNER_BYTES = 256;
const MAX_METADATA_BYTES = 4096;
/** The longest time that timers of Node can measure. */
const MAX_TIMER = 2 ** 31 - 1;

/** The options of a lock. Times are milliseconds. */
export interface LockOptions {
  /** How long the lease lasts unless renewed, which happens at a third of it. Default 30 000; 50 to 86 400 000. */
  ttl?: number | undefined;
  /** A label that tells people which client asks. `host:pid` unless set; at most 256 bytes. */
  owner?: string | undefined;
  /** Text that is shown with the lease, at most 4096 bytes. */
  metadata?: string | undefined;
  /** How long the lock may be held in all: then it is lost. No limit unless set. */
  maxHold?: number | undefined;
}

/** The options of a client. Those of a lock are the defaults of all its locks. Times are milliseconds. */
export interface ConnectOptions extends AddressOptions, LockOptions {
  /** The longest wait of one call, at most 50 000. Default 10 000; make it shorter behind an impatient proxy. */
  waitPerCall?: number | undefined;
  /** How long one request may take that does not wait for a lock. Default 5 000. */
  requestTimeout?: number | undefined;
  /** How long the client tries to release. Default 5 000. */
  releaseTimeout?: number | undefined;
  /** Called when a release or a give-back failed; the lease then ends with its ttl. */
  onReleaseError?: ((error: LeaseholdError) => void) | undefined;
}

/** How long to wait for a lock. */
export interface WaitOptions {
  /** How long to wait at most, in milliseconds. For ever unless set; 0 makes one attempt. */
  wait?: number | undefined;
  /** Cancels the wait; it then rejects with the signal's reason. It does nothing once the lock is held. */
  signal?: AbortSignal | undefined;
}

/** The options of a lock after checking. */
export interface LockSettings {
  readonly ttlMs: number;
  readonly owner: string;
  readonly metadata: string | undefined;
  readonly maxHoldMs: number | undefined;
}

/** The options of a client after checking. */
export interface ClientSettings {
  readonly waitPerCall: number;
  readonly requestTimeout: number;
  readonly releaseTimeout: number;
  readonly onReleaseError: ((error: LeaseholdError) => void) | undefined;
}

/** Checks the options of a lock. */
export function lockSettings(options: LockOptions): LockSettings {
  const owner = text("owner", options.owner ?? `${hostname()}:${String(process.pid)}`, MAX_OWNER_BYTES);
  if (owner === "") throw invalid("`owner` must not be empty");
  const { ttl = DEFAULT_TTL, maxHold, metadata } = options;
  const hold =
    maxHold === undefined ? undefined : milliseconds("maxHold", maxHold, MIN_TTL, Number.MAX_SAFE_INTEGER);
  return {
    ttlMs: Math.min(milliseconds("ttl", ttl, MIN_TTL, MAX_TTL), hold ?? MAX_TTL),
    owner,
    metadata: metadata === undefined ? undefined : text("metadata", metadata, MAX_METADATA_BYTES),
    maxHoldMs: hold,
  };
}

/** Checks the options of a client. */
export function clientSettings(options: ConnectOptions): ClientSettings {
  const { waitPerCall = WAIT_PER_CALL, requestTimeout = 5_000, releaseTimeout = 5_000, onReleaseError } = options;
  if (onReleaseError !== undefined && typeof onReleaseError !== "function") {
    throw invalid("`onReleaseError` must be a function");
  }
  return {
    waitPerCall: milliseconds("waitPerCall", waitPerCall, 1, MAX_WAIT_PER_CALL),
    requestTimeout: milliseconds("requestTimeout", requestTimeout, 1, MAX_TIMER),
    releaseTimeout: milliseconds("releaseTimeout", releaseTimeout, 1, MAX_TIMER),
    onReleaseError,
  };
}

/** Checks how long to wait; `Infinity` without a limit. */
export function waitLimit({ wait }: WaitOptions): number {
  if (wait === undefined || wait === Number.POSITIVE_INFINITY) return Number.POSITIVE_INFINITY;
  return milliseconds("wait", wait, 0, Number.MAX_SAFE_INTEGER);
}

/** Checks the limit of a semaphore. */
export function permits(limit: number): number {
  if (!Number.isInteger(limit) || limit < 1 || limit > 2 ** 32 - 1) {
    throw invalid("the `limit` of a semaphore is a whole number of at least 1");
  }
  return limit;
}

/** Whole milliseconds, rounded up. */
function milliseconds(option: string, value: number, least: number, most: number): number {
  if (typeof value !== "number" || Number.isNaN(value)) throw invalid(`\`${option}\` is a number of milliseconds`);
  const whole = Math.ceil(value);
  if (whole < least || whole > most) {
    const range =
      most === Number.MAX_SAFE_INTEGER ? `at least ${String(least)}` : `${String(least)} to ${String(most)}`;
    throw invalid(`\`${option}\` is ${String(value)} ms; it must be ${range} ms`);
  }
  return whole;
}

function text(option: string, value: string, most: number): string {
  if (typeof value !== "string") throw invalid(`\`${option}\` must be a string`);
  const bytes = Buffer.byteLength(value);
  if (bytes > most) throw invalid(`\`${option}\` has ${String(bytes)} bytes; at most ${String(most)} are allowed`);
  return value;
}
