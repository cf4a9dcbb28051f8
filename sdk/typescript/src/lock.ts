// What a program holds while it holds a lock.

import { inspect } from "node:util";

import type { LockState } from "./belief.js";
import type { Engine } from "./engine.js";
import { LeaseholdError } from "./errors.js";
import type { LostError, LostReason } from "./errors.js";
import { fenceText } from "./fence.js";
import type { Held } from "./held.js";
import type { Released } from "./release.js";
import type { Mode } from "./wire.js";

/** A lock that nobody refers to any more cannot be released: it is renewed no longer, and lost at its deadline. */
const forgotten = new FinalizationRegistry<Held>((held) => {
  held.abandon();
});

/**
 * A lock that this program holds until it releases it, or until it is lost.
 *
 * The client renews it in the background, on a thread of its own: a program that blocks its event loop keeps it. If it
 * is lost, `signal` aborts before the server can grant it to another client.
 */
export class Lock {
  readonly #held: Held;
  readonly #engine: Engine;
  #releaseError: LeaseholdError | undefined;

  /** @internal */
  constructor(engine: Engine, held: Held) {
    this.#engine = engine;
    this.#held = held;
    forgotten.register(this, held, this);
  }

  /** The name of the lock. */
  get name(): string {
    return this.#held.granted.name;
  }

  /** How it shares its name. */
  get mode(): Mode {
    return this.#held.granted.mode;
  }

  /** The owner label that others see. */
  get owner(): string {
    return this.#held.granted.settings.owner;
  }

  /** The fencing token: higher than that of every earlier holder. Send it with every write. */
  get fence(): number {
    return this.#held.granted.fence;
  }

  /** The fence as 15 digits, which compare as text in the same order. */
  get fenceText(): string {
    return fenceText(this.fence);
  }

  /** The lease id. It is a secret: any program that has it can renew and release the lease. */
  get leaseId(): string {
    return this.#held.granted.id;
  }

  /** Aborts when the lock is lost, with a `LostError` as its reason; not when it is released. */
  get signal(): AbortSignal {
    return this.#held.signal;
  }

  /** Whether it is held at this moment. `lost` and `released` are final. */
  get state(): LockState {
    return this.#held.look();
  }

  /** Why it was lost, if it was. */
  get lostReason(): LostReason | undefined {
    return this.#held.loss?.reason;
  }

  /** How long it stays held if no renewal succeeds from now on, in milliseconds; 0 if it is not held. */
  validFor(): number {
    return this.#held.validFor();
  }

  /** Throws unless the lock is held: `LostError` if it is lost, `aborted` if it was released. */
  check(): void {
    const state = this.#held.look();
    if (state === "held") return;
    throw (
      this.#held.loss ?? new LeaseholdError("aborted", "the lock was released; take it again before you use it")
    );
  }

  /** The loss, if it is lost. @internal */
  get loss(): LostError | undefined {
    return this.#held.loss;
  }

  /**
   * Releases the lock. Never rejects, so that in a `finally` it hides no other error.
   *
   * `"released"`: the lease has ended. `"gone"`: there was nothing to end, or it was released before. `"failed"`: the
   * server did not confirm it within `releaseTimeout`, and the lease ends with its ttl; see `releaseError`.
   */
  release(): Promise<Released | "failed"> {
    forgotten.unregister(this);
    const work = this.#release();
    // `close()` waits for it.
    this.#engine.inBackground(work);
    return work;
  }

  async #release(): Promise<Released | "failed"> {
    try {
      return await this.#held.release();
    } catch (error) {
      this.#releaseError =
        error instanceof LeaseholdError
          ? error
          : new LeaseholdError("internal", "the release failed", { cause: error });
      this.#engine.reportRelease(this.#releaseError);
      return "failed";
    }
  }

  /** Why `release()` failed, if it did. */
  get releaseError(): LeaseholdError | undefined {
    return this.#releaseError;
  }

  /** Releases the lock at the end of an `await using` block. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  /** Shows no lease id. @internal */
  [inspect.custom](): string {
    return `Lock { mode: '${this.mode}', fence: ${String(this.fence)}, state: '${this.state}' }`;
  }
}
