// Mutex, reader-writer lock and semaphore: thin faces over one way to acquire.

import type { Claim } from "./acquire.js";
import { acquire } from "./acquire.js";
import type { Engine } from "./engine.js";
import type { LostError } from "./errors.js";
import { attachLoss, TimeoutError } from "./errors.js";
import { Lock } from "./lock.js";
import type { WaitOptions } from "./options.js";
import { waitLimit } from "./options.js";

/** Work that needs a lock. It should stop when `lock.signal` aborts, and send `lock.fence` with every write. */
export type Body<T> = (lock: Lock) => T | PromiseLike<T>;

/** Something that can be locked: a mutex, one side of a reader-writer lock, or a semaphore. */
export class Lockable {
  readonly #engine: Engine;
  readonly #claim: Omit<Claim, "wait" | "signal">;

  /** @internal */
  constructor(engine: Engine, claim: Omit<Claim, "wait" | "signal">) {
    this.#engine = engine;
    this.#claim = claim;
  }

  /**
   * Waits for its turn, first come, first served. Rejects with `TimeoutError` after `wait` milliseconds, and with the
   * reason of `signal` if that aborts; then the client leaves the queue, and gives back what it may have got.
   */
  async lock(options: WaitOptions = {}): Promise<Lock> {
    const held = await acquire(this.#engine, {
      ...this.#claim,
      wait: waitLimit(options),
      signal: options.signal,
    });
    if (held === null) throw new TimeoutError(0);
    return new Lock(this.#engine, held);
  }

  /** Makes one attempt: `null` if another client holds the lock or waits for it. A fault rejects. */
  async tryLock(): Promise<Lock | null> {
    const held = await acquire(this.#engine, { ...this.#claim, wait: 0, signal: undefined });
    return held === null ? null : new Lock(this.#engine, held);
  }

  /**
   * Waits for the lock, does the work, and releases.
   *
   * If the lock is lost meanwhile, `lock.signal` aborts; once the work has ended, this rejects with the `LostError`. If
   * the work throws an error of its own, that error wins, and `lossOf(error)` is the loss.
   */
  async run<T>(body: Body<T>, options: WaitOptions = {}): Promise<T> {
    return work(await this.lock(options), body);
  }

  /** Like `run`, but with one attempt: `null`, without doing the work, if another client holds the lock. */
  async tryRun<T>(body: Body<T>): Promise<T | null> {
    const lock = await this.tryLock();
    return lock === null ? null : work(lock, body);
  }
}

/** A lock that one client holds alone. */
export class Mutex extends Lockable {}

/** A lock that at most `limit` clients hold at once. Every client must give the same limit. */
export class Semaphore extends Lockable {}

/** A lock that many readers share, or one writer holds alone. A mutex of the same name is its write side. */
export class RwLock {
  /** The side for readers. */
  readonly read: Lockable;
  /** The side for writers. */
  readonly write: Lockable;

  /** @internal */
  constructor(read: Lockable, write: Lockable) {
    this.read = read;
    this.write = write;
  }
}

async function work<T>(lock: Lock, body: Body<T>): Promise<T> {
  try {
    const result = await body(lock);
    if (lock.loss !== undefined) throw lock.loss;
    return result;
  } catch (error) {
    const { loss } = lock;
    if (loss === undefined || error === loss) throw error;
    if (isCancel(error, loss)) throw loss;
    attachLoss(error, loss);
    throw error;
  } finally {
    const released = lock.release();
    // A caller learns of a loss at once, also while the server does not answer.
    if (lock.loss === undefined) await released;
  }
}

/** Whether an error only says that the work was cancelled by the lock's signal. */
function isCancel(error: unknown, loss: LostError): boolean {
  return error instanceof Error && error.name === "AbortError" && error.cause === loss;
}
