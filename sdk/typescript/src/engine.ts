// What the parts of one client share: connections, clock, renewing thread, and the work that nobody awaits.

import type { Address } from "./address.js";
import { Pages } from "./belief.js";
import { Clock } from "./clock.js";
import { LeaseholdError } from "./errors.js";
import type { ClientSettings } from "./options.js";
import { Pulse } from "./pulse.js";
import { Renewer } from "./renewer.js";
import { Transport } from "./transport.js";

/** The inside of a client. */
export class Engine {
  readonly clock = new Clock();
  readonly pages = new Pages();
  readonly transport: Transport;
  readonly renewer: Renewer;
  readonly pulse: Pulse;
  readonly settings: ClientSettings;
  readonly #outstanding = new Set<Promise<unknown>>();
  readonly #acquires = new Set<(error: LeaseholdError) => void>();
  #closed = false;
  #numbers = 0;

  constructor(address: Address, settings: ClientSettings) {
    this.settings = settings;
    this.transport = new Transport(address);
    this.renewer = new Renewer(address, this.clock);
    this.pulse = new Pulse(this.transport);
  }

  /** A number for a new lease. */
  number(): number {
    return ++this.#numbers;
  }

  /** Marks the beginning of an acquire, which `stop` ends when the client closes. Returns what marks its end. */
  acquiring(stop: (error: LeaseholdError) => void): () => void {
    if (this.#closed) throw closed();
    this.#acquires.add(stop);
    return () => {
      this.#acquires.delete(stop);
    };
  }

  /** Work that nobody awaits but `close`; its failure goes to `onReleaseError`. */
  inBackground(work: Promise<unknown>): void {
    const guarded = work
      .catch((error: unknown) => {
        this.reportRelease(error);
      })
      .finally(() => {
        this.#outstanding.delete(guarded);
      });
    this.#outstanding.add(guarded);
  }

  /** Tells the program that a release failed. */
  reportRelease(error: unknown): void {
    const { onReleaseError } = this.settings;
    if (onReleaseError === undefined || !(error instanceof LeaseholdError)) return;
    // An error of the program's own must not end what the client is doing.
    queueMicrotask(() => {
      onReleaseError(error);
    });
  }

  /** Ends all acquires, and waits until everything is given back. Locks that are held stay held and renewed. */
  async close(): Promise<void> {
    this.#closed = true;
    for (const stop of [...this.#acquires]) stop(closed());
    // What ends now gives back what it may have got.
    await new Promise((resolve) => setImmediate(resolve));
    while (this.#outstanding.size > 0) await Promise.all(this.#outstanding);
    this.renewer.close();
    this.transport.forgetIdle();
  }
}

function closed(): LeaseholdError {
  return new LeaseholdError("aborted", "the client is closed; make a new one with `connect()`");
}
