// The only renewal loop of a client. It runs on a thread of its own (renewal-thread.ts), so that a program that blocks
// its event loop keeps its locks.

import { Belief } from "./belief.js";
import type { Clock } from "./clock.js";
import {
  BATCH,
  BATCH_BYTES,
  deadline,
  least,
  MS,
  renewalRetry,
  renewalTimeout,
  renewEvery,
  TOGETHER,
} from "./limits.js";
import type { Transport } from "./transport.js";
import type { Renewal, RenewBody } from "./wire.js";
import { readRenewals } from "./wire.js";

/** A held lease, as the user's thread hands it over. */
export interface Lease {
  readonly number: number;
  readonly name: string;
  readonly id: string;
  readonly fence: number;
  readonly ttlMs: number;
  /** When to renew it first. */
  readonly due: bigint;
  /** Where its belief is on the latest page. */
  readonly slot: number;
}

/** Timers of Node measure no longer time, in milliseconds. */
const LONGEST = 2n ** 31n - 1n;

/** What the user's thread sends: a lease to renew, and numbers of leases to forget. */
export interface Message {
  /** A new page for beliefs: that of this lease, and of all later ones until the next page. */
  readonly page?: BigInt64Array;
  readonly hold?: Lease;
  readonly forget: readonly number[];
}

interface Renewed {
  readonly lease: Lease;
  readonly belief: Belief;
  /** When to renew it next; nothing while a renewal is in flight. */
  due: bigint | undefined;
}

interface Item {
  readonly renewed: Renewed;
  readonly body: RenewBody;
  /** `maxHold` cuts this renewal short. */
  readonly capped: boolean;
}

/** Renews leases in batches until they are released or lost. */
export class RenewalLoop {
  readonly #transport: Transport;
  readonly #clock: Clock;
  readonly #lost: (number: number) => void;
  readonly #leases = new Map<number, Renewed>();
  #page: BigInt64Array = new BigInt64Array(0);
  #timer: NodeJS.Timeout | undefined;
  #armed: bigint | undefined;

  /** `lost` is called with the number of each lease that the server says is gone. */
  constructor(transport: Transport, clock: Clock, lost: (number: number) => void) {
    this.#transport = transport;
    this.#clock = clock;
    this.#lost = lost;
  }

  /** Takes a message of the user's thread. */
  take({ page, hold, forget }: Message): void {
    this.#page = page ?? this.#page;
    for (const number of forget) this.#leases.delete(number);
    if (hold === undefined) return;
    const belief = new Belief({ page: this.#page, slot: hold.slot });
    this.#leases.set(hold.number, { lease: hold, belief, due: hold.due });
    this.#arm(hold.due);
  }

  /** Sets the timer, unless it fires early enough. */
  #arm(due: bigint): void {
    if (this.#armed !== undefined && this.#armed <= due) return;
    clearTimeout(this.#timer);
    this.#armed = due;
    const left = due - this.#clock.now();
    this.#timer = setTimeout(
      () => {
        this.#armed = undefined;
        this.#renewDue();
      },
      left > 0n ? Number(least(left / MS, LONGEST)) : 0,
    );
  }

  /** Starts the renewals that are due within the next moments, and sets the timer for the others. */
  #renewDue(): void {
    const now = this.#clock.now();
    let next: bigint | undefined;
    let batch: Item[] = [];
    let bytes = 0;
    for (const renewed of this.#leases.values()) {
      if (renewed.due === undefined) continue;
      if (renewed.due > now + TOGETHER) {
        next = next === undefined ? renewed.due : least(next, renewed.due);
        continue;
      }
      if (renewed.belief.state(now) !== "held") {
        this.#drop(renewed);
        continue;
      }
      renewed.due = undefined;
      // If `maxHold` has cut the last renewal short, there is nothing more to ask for.
      if (renewed.belief.capped()) continue;
      const item = ask(renewed, now);
      const size = Buffer.byteLength(JSON.stringify(item.body)) + 1;
      if (batch.length === BATCH || bytes + size > BATCH_BYTES) {
        void this.#renew(batch);
        [batch, bytes] = [[], 0];
      }
      batch.push(item);
      bytes += size;
    }
    if (batch.length > 0) void this.#renew(batch);
    if (next !== undefined) this.#arm(next);
  }

  /** Renews one batch and gives each lease its answer. */
  async #renew(batch: Item[]): Promise<void> {
    const sent = this.#clock.now();
    const shortest = Math.min(...batch.map((item) => item.renewed.lease.ttlMs));
    let answers: Renewal[] | undefined;
    try {
      const body = { leases: batch.map((item) => item.body) };
      const within = Math.max(1, Number(renewalTimeout(shortest) / MS));
      const answer = await this.#transport.post("/v1/renew", () => body, within).answer;
      answers = readRenewals(answer, batch.length);
    } catch {
      // Tried again below, until the deadline.
    }
    const now = this.#clock.now();
    batch.forEach((item, at) => {
      this.#answered(item, answers?.[at] ?? { is: "failed" }, sent, now);
    });
  }

  #answered(item: Item, answer: Renewal, sent: bigint, now: bigint): void {
    const { renewed, capped } = item;
    const { lease, belief } = renewed;
    if (this.#leases.get(lease.number) !== renewed) return;
    if (answer.is === "held") {
      belief.confirm(now, deadline(sent, 0, answer.leftMs, lease.ttlMs), capped);
    } else if (answer.is === "gone") {
      belief.lose(answer.why);
    }
    if (belief.state(now) !== "held") return this.#drop(renewed);
    renewed.due = answer.is === "held" ? sent + renewEvery(lease.ttlMs) : now + renewalRetry(lease.ttlMs);
    this.#arm(renewed.due);
  }

  #drop(renewed: Renewed): void {
    this.#leases.delete(renewed.lease.number);
    if (renewed.belief.reason() !== undefined) this.#lost(renewed.lease.number);
  }
}

/** A renewal to send now: for the ttl, or for what is left of `maxHold`. */
function ask(renewed: Renewed, now: bigint): Item {
  const { lease, belief } = renewed;
  const left = (belief.holdUntil() - now) / MS;
  const capped = left <= BigInt(lease.ttlMs);
  const body = {
    lock_name: lease.name,
    lease_id: lease.id,
    extend_by_ms: capped ? Math.max(1, Number(left)) : lease.ttlMs,
    fencing_token: lease.fence,
  };
  return { renewed, body, capped };
}
