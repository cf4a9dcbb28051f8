// The clock of deadlines: it counts the time that the machine was suspended, and ignores steps of the wall clock.
//
// Node has no call for CLOCK_BOOTTIME. The monotonic clock is exact but stands still during suspend; /proc/uptime
// (what `os.uptime()` reads) goes on, in steps of 10 ms. So the clock is the monotonic one plus an offset, which moves
// forward when the uptime shows that the machine was suspended. Both threads of a client share the offset, so a moment
// means the same in both. On systems without /proc/uptime the clock is the monotonic one.

import { openSync, readSync } from "node:fs";

import { MS } from "./limits.js";

/** The uptime is rounded down to this. */
const STEP = 10n * MS;

/** Moments in nanoseconds since some moment in the past. */
export class Clock {
  readonly #offset: BigInt64Array;

  /** The memory of the offset, for a clock of another thread. */
  readonly shared: SharedArrayBuffer;

  /** A new clock, or one that shares its offset with another thread's. */
  constructor(shared?: SharedArrayBuffer) {
    this.shared = shared ?? new SharedArrayBuffer(8);
    this.#offset = new BigInt64Array(this.shared);
    const up = shared === undefined ? uptime() : undefined;
    if (up !== undefined) this.#offset[0] = up - process.hrtime.bigint();
  }

  /** This moment. */
  now(): bigint {
    const up = uptime();
    // Read after the uptime, so that a pause between the two does not look like a suspend.
    const monotonic = process.hrtime.bigint();
    let offset = Atomics.load(this.#offset, 0);
    if (up !== undefined) {
      for (;;) {
        // An offset is at most one step too small at the start, so only more than two steps are a suspend. Then the
        // offset becomes at most one step too large: a deadline rather comes too early.
        if (up - monotonic <= offset + 2n * STEP) break;
        const found = Atomics.compareExchange(this.#offset, 0, offset, up - monotonic + STEP);
        offset = found === offset ? up - monotonic + STEP : found;
      }
    }
    return monotonic + offset;
  }

  /** How much the clock is ahead of the monotonic one; it grows when the machine was suspended. */
  offset(): bigint {
    return Atomics.load(this.#offset, 0);
  }
}

let file: number | undefined;
const bytes = Buffer.alloc(64);

/** The uptime in nanoseconds, rounded down to a step; nothing where the system does not tell. */
function uptime(): bigint | undefined {
  if (process.platform !== "linux") return undefined;
  try {
    file ??= openSync("/proc/uptime", "r");
    // "814.97 393.48": seconds with two decimals.
    const text = bytes.toString("latin1", 0, readSync(file, bytes, 0, bytes.length, 0));
    const dot = text.indexOf(".");
    return dot < 0 ? undefined : (BigInt(text.slice(0, dot)) * 100n + BigInt(text.slice(dot + 1, dot + 3))) * STEP;
  } catch {
    return undefined;
  }
}
