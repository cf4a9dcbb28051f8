// The user's side of the renewing thread: hands leases over, and tells them when the thread lost them.

import { Worker } from "node:worker_threads";

import type { Address } from "./address.js";
import type { Clock } from "./clock.js";
import type { Lease, Message } from "./renewal-loop.js";
import type { ThreadData } from "./renewal-thread.js";

/** How long the thread is kept while no lock is held, in milliseconds. */
const KEPT = 30_000;

/** How often to look whether the machine was suspended, which timers do not notice, in milliseconds. */
const LOOK = 1_000;

/** So many forgotten leases are sent at once, unless a new lease takes them along. */
const FORGET = 64;

/** What the renewer tells about a lease. */
export interface Listener {
  /** The state may have changed, or the clock has jumped: look again. */
  look(): void;
  /** Nothing renews it any more. */
  unattended(): void;
}

/** Renews the leases of one client, on a thread that exists while there are any. */
export class Renewer {
  readonly #address: Address;
  readonly #clock: Clock;
  readonly #held = new Map<number, Listener>();
  #thread: Worker | undefined;
  #forgotten: number[] = [];
  /** The page that the thread has. */
  #page: BigInt64Array | undefined;
  #idleSince = 0;
  #looks: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(address: Address, clock: Clock) {
    this.#address = address;
    this.#clock = clock;
  }

  /** Starts the thread, so that it is there when the first lease needs it. */
  start(): void {
    if (this.#thread !== undefined) return;
    const workerData: ThreadData = { address: this.#address, clock: this.#clock.shared };
    // The thread gets nothing of the program's: no arguments, no flags, and no token in its environment.
    const options = { workerData, name: "leasehold", env: {}, argv: [], execArgv: [] };
    const thread = new Worker(new URL("./renewal-thread.js", import.meta.url), options);
    thread.on("message", (number: number) => this.#held.get(number)?.look());
    thread.on("error", () => {
      this.#ended(thread);
    });
    thread.on("exit", () => {
      this.#ended(thread);
    });
    // A lock that is held does not keep the process alive.
    thread.unref();
    this.#thread = thread;
    this.#idleSince = performance.now();
    this.#looks = this.#lookAround();
  }

  /** Renews a lease from now on; its belief is on this page. */
  hold(lease: Lease, page: BigInt64Array, listener: Listener): void {
    this.start();
    this.#held.set(lease.number, listener);
    const message = { hold: lease, forget: this.#take() };
    this.#post(page === this.#page ? message : { ...message, page });
    this.#page = page;
  }

  /** Stops renewing a lease; at once, if its belief does not tell the thread that it was released or lost. */
  forget(number: number, atOnce = false): void {
    if (!this.#held.delete(number)) return;
    this.#forgotten.push(number);
    if (atOnce || this.#forgotten.length >= FORGET) this.#post({ forget: this.#take() });
    if (this.#held.size > 0) return;
    this.#idleSince = performance.now();
    if (this.#closed) this.#end();
  }

  /** Ends the thread when no lock is held any more. */
  close(): void {
    this.#closed = true;
    if (this.#held.size === 0) this.#end();
  }

  #post(message: Message): void {
    this.#thread?.postMessage(message);
  }

  #take(): number[] {
    const forgotten = this.#forgotten;
    this.#forgotten = [];
    return forgotten;
  }

  #end(): void {
    clearInterval(this.#looks);
    const thread = this.#thread;
    [this.#thread, this.#page, this.#forgotten] = [undefined, undefined, []];
    void thread?.terminate();
  }

  /** The thread has ended by itself: no lock may go on believing that it is renewed. */
  #ended(thread: Worker): void {
    if (this.#thread !== thread) return;
    this.#thread = undefined;
    const held = [...this.#held.values()];
    this.#held.clear();
    this.#end();
    for (const listener of held) listener.unattended();
  }

  /** Looks now and then whether the machine was suspended, and whether the thread is still needed. */
  #lookAround(): NodeJS.Timeout {
    let offset = this.#clock.offset();
    const looks = setInterval(() => {
      if (this.#held.size === 0 && performance.now() - this.#idleSince > KEPT) {
        this.#end();
        return;
      }
      this.#clock.now();
      if (this.#clock.offset() === offset) return;
      offset = this.#clock.offset();
      for (const listener of [...this.#held.values()]) listener.look();
    }, LOOK);
    return looks.unref();
  }
}
