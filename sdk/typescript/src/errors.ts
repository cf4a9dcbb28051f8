// The errors of this package: a kind that decides what to do, and a message for people.

/** What went wrong, in the words of every leasehold client. */
export type ErrorKind =
  | "invalid_argument"
  | "unavailable"
  | "overloaded"
  | "network_timeout"
  | "auth_failed"
  | "rate_limited"
  | "timeout"
  | "aborted"
  | "lost"
  | "mismatch"
  | "deadlock"
  | "unsupported"
  | "internal";

/** Why a lock was lost. */
export type LostReason =
  /** No renewal was confirmed in time. */
  | "deadline_passed"
  /** The server says that the lease has expired. */
  | "expired"
  /** The server no longer has the lease. */
  | "not_found"
  /** The server says that the lease was superseded. */
  | "superseded"
  /** An operator revoked it. */
  | "revoked"
  /** It was held for as long as `maxHold` allows. */
  | "max_hold"
  /** The thread that renews it has ended. */
  | "unattended";

const RETRYABLE: ReadonlySet<ErrorKind> = new Set([
  "unavailable",
  "overloaded",
  "network_timeout",
  "rate_limited",
]);

/**
 * An error of this package. Its text never holds a lock's name, a lease id or a token.
 *
 * A lock that another client holds is no error: `tryLock()` answers `null`.
 */
export class LeaseholdError extends Error {
  /** What went wrong, for programs. */
  readonly kind: ErrorKind;
  /** How long the server asks to wait before the next try, in milliseconds, if it does. */
  readonly retryAfter: number | undefined;
  override name = "LeaseholdError";

  constructor(kind: ErrorKind, message: string, options: ErrorOptions & { retryAfter?: number | undefined } = {}) {
    super(message, options);
    this.kind = kind;
    this.retryAfter = options.retryAfter;
  }

  /** Whether the same call can succeed a little later, without anything being fixed. */
  get retryable(): boolean {
    return RETRYABLE.has(this.kind);
  }
}

/** The lock did not become free within `wait`. */
export class TimeoutError extends LeaseholdError {
  override name = "TimeoutError";
  /** How long the caller waited, in milliseconds. */
  readonly waited: number;

  constructor(waited: number) {
    super("timeout", `not acquired within ${String(Math.round(waited))} ms`);
    this.waited = waited;
  }
}

const WHY: Record<LostReason, string> = {
  deadline_passed: "no renewal was confirmed in time",
  expired: "the server says that the lease has expired",
  not_found: "the server no longer has the lease",
  superseded: "the server says that the lease was superseded",
  revoked: "it was revoked",
  max_hold: "it was held for as long as `maxHold` allows",
  unattended: "the thread that renews it has ended",
};

/** The lock is lost: stop work that needs it. It will not come back. */
export class LostError extends LeaseholdError {
  override name = "LostError";
  /** Why it was lost. */
  readonly reason: LostReason;

  constructor(reason: LostReason) {
    super("lost", `the lock is lost: ${WHY[reason]}; stop work that needs it`);
    this.reason = reason;
  }
}

const losses = new WeakMap<object, LostError>();

/** The loss that happened while the work that threw this error was running, if there was one. */
export function lossOf(error: unknown): LostError | undefined {
  if (error instanceof LostError) return error;
  return typeof error === "object" && error !== null ? losses.get(error) : undefined;
}

/** Attaches a loss to the error of the work; where it can, also as its `cause`, so that people see it. */
export function attachLoss(error: unknown, loss: LostError): void {
  if (typeof error !== "object" || error === null || error === loss) return;
  losses.set(error, loss);
  if (error instanceof Error && error.cause === undefined && Object.isExtensible(error)) {
    Object.defineProperty(error, "cause", { value: loss, writable: true, configurable: true });
  }
}

/** An `invalid_argument` error. */
export function invalid(message: string): LeaseholdError {
  return new LeaseholdError("invalid_argument", message);
}
