// Every time limit of waiting, renewing and giving back. Moments and spans are nanoseconds, as bigint.

export const MS = 1_000_000n;

/** The default ttl, in milliseconds. */
export const DEFAULT_TTL = 30_000;
/** The shortest ttl, in milliseconds: with a shorter one, renewals could not keep up with an ordinary pause. */
export const MIN_TTL = 50;
/** The longest ttl, in milliseconds. */
export const MAX_TTL = 86_400_000;

/** How long the server keeps a waiter's place between two calls, in milliseconds. */
export const TICKET_TTL = 10_000;
/** The longest wait of one call, in milliseconds: short, so that the client notices one dead connection. */
export const WAIT_PER_CALL = 10_000;
/** The longest wait that a server accepts in one call, in milliseconds. */
export const MAX_WAIT_PER_CALL = 50_000;
/** How much later than its wait the answer of a call may come, in milliseconds. */
export const GRACE = 5_000;
/** How much later than the caller's own limit the last answer may come, in milliseconds. */
export const LAST_LOOK = 2_000;
/** How long a wait tolerates a server that does not answer: as long as its place is kept. */
export const PATIENCE = 10_000n * MS;

/** How often a waiting client asks whether the server still answers, and how long the answer may take. */
export const PULSE = 2_000;

/** How long an unused connection is kept, in milliseconds: less than a server waits for the next request. */
export const IDLE = 4_000;

/** Leases due within this time go into one request, which saves the next one. */
export const TOGETHER = 50n * MS;
/** Leases in one request of renewals. */
export const BATCH = 512;
/** Bytes of renewals in one request: well below the 64 KiB that a server reads. */
export const BATCH_BYTES = 40 * 1024;

/**
 * The moment until which the client may rely on a grant. `sent` was taken before the request waited for a connection.
 * One percent and 2 ms are subtracted for clocks that run at different rates and for rounding. A server whose clock was
 * set back may report more time left than was asked for; the client never relies on the excess.
 */
export function deadline(sent: bigint, waitedMs: number, leftMs: number, ttlMs: number): bigint {
  const span = BigInt(waitedMs + Math.min(leftMs, ttlMs)) * MS;
  return sent + span - span / 100n - 2n * MS;
}

/** How long after the grant the first renewal is sent: a grant that is partly used up is renewed sooner. */
export function firstRenewal(ttlMs: number, leftMs: number): bigint {
  const [third, half] = [renewEvery(ttlMs), (BigInt(leftMs) * MS) / 2n];
  return third < half ? third : half;
}

/** The time between two renewals. */
export function renewEvery(ttlMs: number): bigint {
  return (BigInt(ttlMs) * MS) / 3n;
}

/** The time limit of a renewal: several fit between the first one and the deadline. */
export function renewalTimeout(ttlMs: number): bigint {
  return least((BigInt(ttlMs) * MS) / 6n, 5_000n * MS);
}

/** How long to wait before a failed renewal is repeated. */
export function renewalRetry(ttlMs: number): bigint {
  return least((BigInt(ttlMs) * MS) / 12n, 1_000n * MS);
}

/** The pause after so many faults in a row, in milliseconds; `chance` is a random number from 0 to 1. */
export function pause(faults: number, chance: number): number {
  return Math.min(20 * 2 ** Math.min(faults, 20), 1_000) * (0.5 + chance / 2);
}

/** The wait to ask for in one call, in milliseconds, when so much time is left (`Infinity`: no limit). */
export function waitMs(left: number, perCall: number): number {
  return Math.ceil(Math.min(left, perCall));
}

export function least(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}
