// One held lease on the user's thread: its belief, the timer of its deadline, and its signal.

import { Belief } from "./belief.js";
import type { LockState } from "./belief.js";
import type { Engine } from "./engine.js";
import { LostError } from "./errors.js";
import { deadline, firstRenewal, MS } from "./limits.js";
import type { LockSettings } from "./options.js";
import { release } from "./release.js";
import type { Released } from "./release.js";
import type { Mode } from "./wire.js";

/** Timers of Node measure no longer time. */
const LONGEST = 2 ** 31 - 1;

/** What was granted. */
export interface Granted {
  readonly name: string;
  readonly id: string;
  readonly mode: Mode;
  readonly settings: LockSettings;
  readonly fence: number;
  readonly leftMs: number;
  readonly waitedMs: number;
  /** When the request that succeeded was sent, before it waited for a connection. */
  readonly sent: bigint;
}

/** A lease from its grant to its release or loss. */
export class Held {
  readonly granted: Granted;
  readonly #engine: Engine;
  readonly #number: number;
  readonly #belief: Belief;
  #timer: NodeJS.Timeout | undefined;
  #controller: AbortController | undefined;
  #loss: LostError | undefined;
  /** A release was sent. */
  #sent = false;

  /** `now` was read after the answer came. */
  constructor(engine: Engine, granted: Granted, now: bigint) {
    this.#engine = engine;
    this.granted = granted;
    this.#number = engine.number();
    const { sent, waitedMs, leftMs, settings, name, id, fence } = granted;
    const { ttlMs, maxHoldMs } = settings;
    // The server itself waited, so the lease began after that wait.
    const since = sent + BigInt(waitedMs) * MS;
    const holdUntil = maxHoldMs === undefined ? undefined : since + BigInt(maxHoldMs) * MS;
    const capped = maxHoldMs !== undefined && maxHoldMs <= ttlMs;
    const place = engine.pages.next();
    this.#belief = Belief.held(place, deadline(sent, waitedMs, leftMs, ttlMs), holdUntil, capped);
    const due = since + firstRenewal(ttlMs, leftMs);
    const lease = { number: this.#number, name, id, fence, ttlMs, due, slot: place.slot };
    engine.renewer.hold(lease, place.page, this);
    this.#arm(now);
  }

  /** The state at this moment. The first look after a loss sends the signal. */
  look(): LockState {
    const now = this.#engine.clock.now();
    const state = this.#belief.state(now);
    if (state === "lost") this.#lost();
    else if (state === "held") this.#arm(now);
    return state;
  }

  /** Nothing renews it any more. */
  unattended(): void {
    this.#belief.lose("unattended");
    this.look();
  }

  /** Its `Lock` was garbage collected: it is renewed no more, and lost at its deadline. */
  abandon(): void {
    if (this.look() !== "held") return;
    this.#engine.renewer.forget(this.#number, true);
    process.emitWarning(
      "a lock was garbage collected before it was released; its lease ends with its ttl. " +
        "Release every lock, or use `run()`",
      { type: "LeaseholdWarning" },
    );
  }

  /** The loss, if it is lost. */
  get loss(): LostError | undefined {
    return this.look() === "lost" ? this.#loss : undefined;
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      this.look();
      if (this.#loss !== undefined) this.#controller.abort(this.#loss);
    }
    return this.#controller.signal;
  }

  /** Time left until the deadline, in milliseconds; 0 if it is not held. */
  validFor(): number {
    if (this.look() !== "held") return 0;
    return Math.max(0, Number(this.#belief.deadline() - this.#engine.clock.now()) / 1e6);
  }

  /**
   * Releases it, once; a second release sends nothing. The release of a lost lease is sent too: it acts only on this
   * very lease, which may last a little longer at the server.
   */
  async release(): Promise<Released> {
    if (this.#sent) return "gone";
    this.#sent = true;
    const now = this.#engine.clock.now();
    const held = this.#belief.release(now);
    if (held) this.#ended();
    else this.look();
    const { name, id, fence } = this.granted;
    return release(this.#engine, name, { lease_id: id, fencing_token: fence }, held, now);
  }

  #arm(now: bigint): void {
    clearTimeout(this.#timer);
    const left = Math.ceil(Number(this.#belief.deadline() - now) / 1e6);
    // The work that needs the lock keeps the process alive, not the lock.
    this.#timer = setTimeout(() => this.look(), Math.min(left, LONGEST)).unref();
  }

  #lost(): void {
    if (this.#loss !== undefined) return;
    const reason = this.#belief.reason() ?? "deadline_passed";
    this.#loss = new LostError(reason);
    this.#ended();
    this.#controller?.abort(this.#loss);
  }

  #ended(): void {
    clearTimeout(this.#timer);
    this.#engine.renewer.forget(this.#number);
  }
}
