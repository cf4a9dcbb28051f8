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

const [STATE, DEADLINE, HOLD_UNTIL, CAPPED] = [0, 1, 2, 3];
const [HELD, RELEASED, LOST] = [0n, 1n, 2n];
const NEVER = 2n ** 63n - 1n;

/** The state and deadline of one held lease. Leaving `held` is one-way, by one atomic step. */
export class Belief {
  readonly #cells: BigInt64Array;

  constructor(readonly shared = new SharedArrayBuffer(32)) {
    this.#cells = new BigInt64Array(shared);
  }

  /** A new belief: held until the deadline, and never past `holdUntil`. */
  static held(deadline: bigint, holdUntil: bigint | undefined, capped: boolean): Belief {
    const belief = new Belief();
    belief.#cells[HOLD_UNTIL] = holdUntil ?? NEVER;
    belief.#cells[DEADLINE] = least(deadline, holdUntil ?? NEVER);
    belief.#cells[CAPPED] = capped ? 1n : 0n;
    return belief;
  }

  /** The state at this moment: a deadline that has passed is a loss, even if nothing has noticed it yet. */
  state(now: bigint): LockState {
    let state = Atomics.load(this.#cells, STATE);
    if (state === HELD && now >= this.deadline()) {
      const ended = Atomics.load(this.#cells, CAPPED) === 1n || now >= Atomics.load(this.#cells, HOLD_UNTIL);
      this.lose(ended ? "max_hold" : "deadline_passed");
      state = Atomics.load(this.#cells, STATE);
    }
    return state === HELD ? "held" : state === RELEASED ? "released" : "lost";
  }

  /** Why it was lost, if it was. */
  reason(): LostReason | undefined {
    return REASONS[Number(Atomics.load(this.#cells, STATE) - LOST)];
  }

  deadline(): bigint {
    return Atomics.load(this.#cells, DEADLINE);
  }

  /** The moment past which no renewal extends it. */
  holdUntil(): bigint {
    return Atomics.load(this.#cells, HOLD_UNTIL);
  }

  /** Nothing more to ask for: `holdUntil` cut the last confirmed renewal short. */
  capped(): boolean {
    return Atomics.load(this.#cells, CAPPED) === 1n;
  }

  /** Loses it, if it is held. */
  lose(reason: LostReason): void {
    Atomics.compareExchange(this.#cells, STATE, HELD, LOST + BigInt(REASONS.indexOf(reason)));
  }

  /** Its holder releases it. Returns whether it was held until now. */
  release(now: bigint): boolean {
    if (this.state(now) !== "held") return false;
    return Atomics.compareExchange(this.#cells, STATE, HELD, RELEASED) === HELD;
  }

  /** A renewal is confirmed. One that comes after the deadline is too late, and a deadline never moves back. */
  confirm(now: bigint, deadline: bigint, capped: boolean): void {
    if (this.state(now) !== "held") return;
    const until = least(deadline, this.holdUntil());
    Atomics.store(this.#cells, CAPPED, capped ? 1n : 0n);
    if (until > this.deadline()) Atomics.store(this.#cells, DEADLINE, until);
  }
}
