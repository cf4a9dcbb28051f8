// The client of one lock server.

import { inspect } from "node:util";

import { address } from "./address.js";
import { Engine } from "./engine.js";
import { invalid } from "./errors.js";
import { Lockable, Mutex, RwLock, Semaphore } from "./lockables.js";
import { normalise, segment } from "./name.js";
import type { ConnectOptions, LockOptions } from "./options.js";
import { clientSettings, lockSettings, permits } from "./options.js";
import type { LockInfo, Mode, RevokeBody } from "./wire.js";
import { readLock, readPage, readRevoke } from "./wire.js";

/**
 * Makes a client of the server at `options.url`, or at `LEASEHOLD_URL`. Sends nothing yet.
 *
 * @throws LeaseholdError `invalid_argument` if there is no server's address, or an option is wrong.
 */
export function connect(options: ConnectOptions = {}): Locks {
  return new Locks(options);
}

/** What to list. */
export interface ListOptions {
  /** How many locks to ask for in one call, at most 1 000. */
  pageSize?: number | undefined;
}

/** What to revoke. */
export interface RevokeOptions {
  /** Free the name at once, and rely on fences to stop the old holders. Otherwise it is free when they expire. */
  now?: boolean | undefined;
  /** Only the lease with this fence. */
  fence?: number | undefined;
}

/** A client: makes locks by name. It needs no closing, but `close()` waits until everything is given back. */
export class Locks {
  readonly #engine: Engine;
  readonly #defaults: LockOptions;

  /** @internal */
  constructor(options: ConnectOptions) {
    const { ttl, owner, metadata, maxHold } = options;
    this.#defaults = { ttl, owner, metadata, maxHold };
    lockSettings(this.#defaults);
    this.#engine = new Engine(address(options), clientSettings(options));
  }

  /** A lock that one client holds alone. @throws LeaseholdError `invalid_argument` for a bad name or option. */
  mutex(name: string, options: LockOptions = {}): Mutex {
    return new Mutex(this.#engine, this.#claim(name, "exclusive", undefined, options));
  }

  /** A lock that many readers share, or one writer holds alone. @throws LeaseholdError as `mutex`. */
  rwlock(name: string, options: LockOptions = {}): RwLock {
    const side = (mode: Mode) => new Lockable(this.#engine, this.#claim(name, mode, undefined, options));
    return new RwLock(side("shared"), side("exclusive"));
  }

  /** A lock that at most `limit` clients hold at once. @throws LeaseholdError as `mutex`. */
  semaphore(name: string, limit: number, options: LockOptions = {}): Semaphore {
    return new Semaphore(this.#engine, this.#claim(name, "permit", permits(limit), options));
  }

  /** The holders and waiters of a lock; an unused name is a free lock. */
  async show(name: string): Promise<LockInfo> {
    const path = `/v1/locks/${segment(normalise(name))}`;
    return readLock(await this.#engine.transport.get(path, this.#engine.settings.requestTimeout).answer);
  }

  /** The locks in use whose names begin with `prefix`, page by page. */
  async *list(prefix = "", options: ListOptions = {}): AsyncGenerator<LockInfo, void, undefined> {
    const { pageSize = 1_000 } = options;
    if (!Number.isInteger(pageSize) || pageSize < 1 || pageSize > 1_000) {
      throw invalid("`pageSize` is a whole number from 1 to 1000");
    }
    const begin = `/v1/locks?limit=${String(pageSize)}&prefix=${segment(prefix.normalize("NFC"))}`;
    let path: string | undefined = begin;
    while (path !== undefined) {
      const call = this.#engine.transport.get(path, this.#engine.settings.requestTimeout);
      const { locks, next } = readPage(await call.answer);
      yield* locks;
      path = next === undefined ? undefined : `${begin}&cursor=${segment(next)}`;
    }
  }

  /**
   * Refuses to renew the leases of a lock, so that it is free when they expire; with `now`, frees it at once. Resolves
   * to how many leases it affected. A token needs the scope `admin`.
   */
  async revoke(name: string, options: RevokeOptions = {}): Promise<number> {
    const body: RevokeBody = { now: options.now ?? false };
    if (options.fence !== undefined) body.fencing_token = options.fence;
    const path = `/v1/locks/${segment(normalise(name))}/revoke`;
    const { transport, settings } = this.#engine;
    return readRevoke(await transport.post(path, () => body, settings.requestTimeout).answer);
  }

  /** Ends all waits with the error `aborted`, and waits until everything is given back. Held locks stay held. */
  async close(): Promise<void> {
    await this.#engine.close();
  }

  /** Closes the client at the end of an `await using` block. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Shows no token. @internal */
  [inspect.custom](): string {
    return "Locks {}";
  }

  #claim(name: string, mode: Mode, limit: number | undefined, options: LockOptions) {
    const settings = lockSettings({ ...this.#defaults, ...defined(options) });
    return { name: normalise(name), mode, limit, settings };
  }
}

/** The options that are set. */
function defined(options: LockOptions): LockOptions {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}
