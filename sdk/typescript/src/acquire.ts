// One acquire: waits for a grant, judges it by the client's clock, and gives back what it does not keep.

import type { Engine } from "./engine.js";
import { LeaseholdError, TimeoutError } from "./errors.js";
import { Held } from "./held.js";
import { deadline, GRACE, LAST_LOOK, MS, PATIENCE, pause, TICKET_TTL, waitMs } from "./limits.js";
import { randomLeaseId } from "./lease-id.js";
import { segment } from "./name.js";
import type { LockSettings } from "./options.js";
import { release } from "./release.js";
import type { Call } from "./transport.js";
import type { AcquireBody, Answer, Attempt, Mode } from "./wire.js";
import { readAttempt } from "./wire.js";

/** An answer to a long call that comes sooner than this, in milliseconds, did not wait. */
const TOO_SOON = 5;

/** What the caller asks for. */
export interface Claim {
  readonly name: string;
  readonly mode: Mode;
  readonly limit: number | undefined;
  readonly settings: LockSettings;
  /** How long to wait at most, in milliseconds; `Infinity` for ever, 0 for one attempt. */
  readonly wait: number;
  readonly signal: AbortSignal | undefined;
}

/**
 * Acquires a lease; nothing if another client holds it and `wait` is 0. Rejects with `TimeoutError` if `wait` is over,
 * with the signal's reason if it is cancelled, and otherwise with the fault.
 */
export async function acquire(engine: Engine, claim: Claim): Promise<Held | null> {
  claim.signal?.throwIfAborted();
  const acquisition = new Acquisition(engine, claim);
  const stop = (reason: unknown) => {
    acquisition.stop(reason);
  };
  const cancelled = () => {
    stop(claim.signal?.reason);
  };
  const ended = engine.acquiring(stop);
  claim.signal?.addEventListener("abort", cancelled, { once: true });
  try {
    return await acquisition.run();
  } finally {
    claim.signal?.removeEventListener("abort", cancelled);
    acquisition.tidy();
    ended();
  }
}

class Acquisition {
  readonly #engine: Engine;
  readonly #claim: Claim;
  readonly #path: string;
  readonly #started: bigint;
  /** When the caller's patience ends. */
  readonly #end: bigint | undefined;
  #id = randomLeaseId();
  /** A call with this id went unanswered. */
  #repeat = false;
  /** The server may have a lease or a place under this id. */
  #pending = false;
  /** How often this id was sent. */
  #calls = 0;
  /** The last answer was busy: the claim has a place in the queue, and can wait in a long call. */
  #queued = false;
  #faults = 0;
  #failingSince: bigint | undefined;
  #lastFault: LeaseholdError | undefined;
  #measuredAgain = false;
  /** Calls to a silent server. To the server, a closed connection means that the client has gone. */
  #silent: Call[] = [];
  #stopped: { reason: unknown } | undefined;
  #interrupt: ((reason: unknown) => void) | undefined;

  constructor(engine: Engine, claim: Claim) {
    this.#engine = engine;
    this.#claim = claim;
    this.#path = `/v1/locks/${segment(claim.name)}/acquire`;
    this.#started = engine.clock.now();
    this.#end = Number.isFinite(claim.wait) ? this.#started + BigInt(claim.wait) * MS : undefined;
  }

  /** Ends the wait with this reason. */
  stop(reason: unknown): void {
    this.#stopped ??= { reason };
    this.#interrupt?.(reason);
  }

  async run(): Promise<Held | null> {
    // The thread starts beside the first call.
    this.#engine.renewer.start();
    for (let first = true; ; first = false) {
      this.#throwIfStopped();
      const sent = first ? this.#started : this.#engine.clock.now();
      if (!this.#once() && this.#pending && this.#left(sent) <= 0) throw this.#outOfTime();
      let attempt: Attempt;
      try {
        attempt = readAttempt(await this.#call(sent));
      } catch (error) {
        if (this.#stopped !== undefined || !(error instanceof LeaseholdError)) throw error;
        await this.#failed(error);
        continue;
      }
      // A cancel may meet the answer: then what it brings is given back.
      this.#throwIfStopped();
      if (attempt.is === "granted") {
        const held = await this.#granted(sent, attempt);
        if (held !== undefined) return held;
      } else if (attempt.is === "busy") {
        if (this.#once()) {
          this.#pending = this.#repeat;
          return null;
        }
        const waited = this.#queued ? Number(this.#engine.clock.now() - sent) / 1e6 : Number.POSITIVE_INFINITY;
        [this.#queued, this.#faults, this.#failingSince, this.#lastFault] = [true, 0, undefined, undefined];
        // A server that does not wait must not be asked without a pause.
        if (waited < TOO_SOON) await this.#sleep(Math.min(attempt.retryMs, 1_000, this.#left(sent)));
      } else {
        // The call that this one repeats was given up, or its lease is over.
        this.#pending = false;
        this.#beginAnew();
        const message = "the server no longer accepts this claim's lease id; try again with a new one";
        await this.#fault(new LeaseholdError("overloaded", message));
      }
    }
  }

  /** Ends all connections, and gives back what the server may have under this id. */
  tidy(): void {
    this.#closeSilent();
    this.#giveBack();
  }

  #throwIfStopped(): void {
    if (this.#stopped !== undefined) throw this.#stopped.reason;
  }

  /** One attempt only. */
  #once(): boolean {
    return this.#claim.wait === 0;
  }

  #left(now: bigint): number {
    return this.#end === undefined ? Number.POSITIVE_INFINITY : Number(this.#end - now) / 1e6;
  }

  /** Sends the claim, and waits for the answer, a cancel, or the silence of the server. */
  async #call(sent: bigint): Promise<Answer> {
    const { settings, transport, pulse } = this.#engine;
    // The first call asks at once, so that a lost answer is noticed soon; it also joins the queue.
    const long = this.#queued && !this.#once();
    const left = this.#left(sent);
    const wait = long ? waitMs(left, settings.waitPerCall) : 0;
    const within = long
      ? Math.min(wait + GRACE, left + LAST_LOOK)
      : Math.min(settings.requestTimeout, left + LAST_LOOK);
    this.#pending = true;
    this.#calls += 1;
    const call = transport.post(
      this.#path,
      (again) => this.#body(wait, again),
      this.#once() ? settings.requestTimeout : within,
    );
    let unlisten: (() => void) | undefined;
    try {
      const answer = await new Promise<Answer>((resolve, reject) => {
        this.#interrupt = reject;
        if (long) {
          unlisten = pulse.listen(() => {
            this.#silent.push(call);
            reject(new LeaseholdError("unavailable", "the server does not answer"));
          });
        }
        call.answer.then(resolve, reject);
      });
      this.#closeSilent();
      return answer;
    } catch (error) {
      this.#repeat = true;
      if (!this.#silent.includes(call)) call.abort();
      throw error;
    } finally {
      this.#interrupt = undefined;
      unlisten?.();
    }
  }

  #body(wait: number, again: boolean): AcquireBody {
    const { settings, mode, limit } = this.#claim;
    this.#repeat ||= again;
    const body: AcquireBody = { owner_id: settings.owner, ttl_ms: settings.ttlMs, lease_id: this.#id };
    if (mode !== "exclusive") body.mode = mode;
    if (limit !== undefined) body.limit = limit;
    if (settings.metadata !== undefined) body.metadata = settings.metadata;
    if (wait > 0) body.wait_ms = wait;
    else if (!this.#once()) body.queue = TICKET_TTL;
    if (this.#repeat) body.repeat = true;
    return body;
  }

  /** Keeps a grant, asks for it to be measured again, or gives it back. */
  async #granted(sent: bigint, attempt: Extract<Attempt, { is: "granted" }>): Promise<Held | undefined> {
    const { name, mode, settings } = this.#claim;
    const { fence, leftMs, waitedMs } = attempt;
    const now = this.#engine.clock.now();
    if (now < deadline(sent, waitedMs, leftMs, settings.ttlMs)) {
      this.#pending = false;
      return new Held(this.#engine, { name, id: this.#id, mode, settings, fence, leftMs, waitedMs, sent }, now);
    }
    if (!this.#once() && !this.#measuredAgain && this.#left(now) > 0) {
      // The same claim again tells what is left by now.
      this.#measuredAgain = true;
      return undefined;
    }
    this.#measuredAgain = false;
    this.#beginAnew();
    const message = "the server granted the lock, but its ttl was over when the answer came; use a longer `ttl`";
    await this.#fault(new LeaseholdError("network_timeout", message));
    return undefined;
  }

  async #failed(error: LeaseholdError): Promise<void> {
    if (!error.retryable) {
      // The server refused before it did anything, unless it does not know itself.
      this.#pending = this.#repeat || this.#calls > 1 || error.kind === "internal";
      throw error;
    }
    await this.#fault(error);
  }

  /** Pauses before the next attempt; throws the error if no time or patience is left. */
  async #fault(error: LeaseholdError): Promise<void> {
    const now = this.#engine.clock.now();
    // Not since the call was sent: it may have waited for long before its connection broke.
    this.#failingSince ??= now;
    if (this.#once() || this.#left(now) <= 0 || now - this.#failingSince >= PATIENCE) throw error;
    this.#lastFault = error;
    // The next call asks at once again, so that another lost answer is noticed soon.
    this.#queued = false;
    const asked = error.kind === "rate_limited" ? (error.retryAfter ?? 0) : 0;
    const rest = Math.max(pause(this.#faults, Math.random()), asked);
    this.#faults += 1;
    await this.#sleep(Math.min(rest, this.#left(now)));
    if (this.#left(this.#engine.clock.now()) <= 0) throw error;
  }

  async #sleep(ms: number): Promise<void> {
    this.#throwIfStopped();
    let timer: NodeJS.Timeout | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        this.#interrupt = reject;
        timer = setTimeout(resolve, ms);
      });
    } finally {
      this.#interrupt = undefined;
      clearTimeout(timer);
    }
  }

  #outOfTime(): LeaseholdError {
    return this.#lastFault ?? new TimeoutError(Number(this.#engine.clock.now() - this.#started) / 1e6);
  }

  #beginAnew(): void {
    this.#giveBack();
    [this.#id, this.#repeat, this.#calls, this.#queued] = [randomLeaseId(), false, 0, false];
  }

  #giveBack(): void {
    if (!this.#pending) return;
    this.#pending = false;
    const { name, settings } = this.#claim;
    const body = { lease_id: this.#id, unanswered: settings.ttlMs };
    this.#engine.inBackground(release(this.#engine, name, body, false));
  }

  #closeSilent(): void {
    for (const call of this.#silent.splice(0)) call.abort();
  }
}
