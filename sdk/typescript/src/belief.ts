// What a client believes about one held lease, in memory that the user's thread and the renewing thread share: a look
// at it is right at once, also when the user's event loop was blocked.

import type { LostReason } from "./errors.js";
import { least } from "./limits.js";

/** Whether a lock is held. `lost` and `released` are final. */
export type LockState = "held" | "lost" | "released";

/** The numbers that stand for a loss in shared memory. */
const REASONS: readonly LostReason[] = [
  "deadline_passed",
  "expired",
  "not_found",
  "superseded",
  "revoked",
  "max_hold",
  "unattended",
];

const [STATE, DEADLINE, HOLD_UNTIL, CAPPED, CELLS] = [0, 1, 2, 3, 4];
const [HELD, RELEASED, LOST] = [0n, 1n, 2n];
const NEVER = 2n ** 63n - 1n;

/** Beliefs on one page: shared memory is dear to make, and cheap to use. */
const PER_PAGE = 256;

/** The place of a belief in shared memory. A place is never used again, so a late answer meets no other lease. */
export interface Place {
  readonly page: BigInt64Array;
  readonly slot: number;
}

/** Gives out places, each once. */
export class Pages {
  #page: BigInt64Array = new BigInt64Array(0);
  #used = PER_PAGE;

  next(): Place {
    if (this.#used === PER_PAGE) {
      this.#page = new BigInt64Array(new SharedArrayBuffer(PER_PAGE * CELLS * 8));
      this.#used = 0;
    }
    return { page: this.#page, slot: this.#used++ };
  }
}

/** The state and deadline of one held lease. Leaving `held` is one-way, by one atomic step. */
export class Belief {
  readonly #cells: BigInt64Array;
  readonly #at: number;

  constructor({ page, slot }: Place) {
    this.#cells = page;
    this.#at = slot * CELLS;
  }

  /** A new belief: held until the deadline, and never past `holdUntil`. */
  static held(place: Place, deadline: bigint, holdUntil: bigint | undefined, capped: boolean): Belief {
    const belief = new Belief(place);
    belief.#store(HOLD_UNTIL, holdUntil ?? NEVER);
    belief.#store(DEADLINE, least(deadline, holdUntil ?? NEVER));
    belief.#store(CAPPED, capped ? 1n : 0n);
    return belief;
  }

  /** The state at this moment: a deadline that has passed is a loss, even if nothing has noticed it yet. */
  state(now: bigint): LockState {
    let state = this.#load(STATE);
    if (state === HELD && now >= this.deadline()) {
      const ended = this.#load(CAPPED) === 1n || now >= this.#load(HOLD_UNTIL);
      this.lose(ended ? "max_hold" : "deadline_passed");
      state = this.#load(STATE);
    }
    return state === HELD ? "held" : state === RELEASED ? "released" : "lost";
  }

  /** Why it was lost, if it was. */
  reason(): LostReason | undefined {
    return REASONS[Number(this.#load(STATE) - LOST)];
  }

  deadline(): bigint {
    return this.#load(DEADLINE);
  }

  /** The moment past which no renewal extends it. */
  holdUntil(): bigint {
    return this.#load(HOLD_UNTIL);
  }

  /** Nothing more to ask for: `holdUntil` cut the last confirmed renewal short. */
  capped(): boolean {
    return this.#load(CAPPED) === 1n;
  }

  /** Loses it, if it is held. */
  lose(reason: LostReason): void {
    Atomics.compareExchange(this.#cells, this.#at + STATE, HELD, LOST + BigInt(REASONS.indexOf(reason)));
  }

  /** Its holder releases it. Returns whether it was held until now. */
  release(now: bigint): boolean {
    if (this.state(now) !== "held") return false;
    return Atomics.compareExchange(this.#cells, this.#at + STATE, HELD, RELEASED) === HELD;
  }

  /** A renewal is confirmed. One that comes after the deadline is too late, and a deadline never moves back. */
  confirm(now: bigint, deadline: bigint, capped: boolean): void {
    if (this.state(now) !== "held") return;
    const until = least(deadline, this.holdUntil());
    this.#store(CAPPED, capped ? 1n : 0n);
    if (until > this.deadline()) this.#store(DEADLINE, until);
  }

  #load(cell: number): bigint {
    return Atomics.load(this.#cells, this.#at + cell);
  }

  #store(cell: number, value: bigint): void {
    Atomics.store(this.#cells, this.#at + cell, value);
  }
}
