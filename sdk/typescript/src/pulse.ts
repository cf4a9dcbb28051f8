// Checks, for all waiters of a client, that the server still answers: their own calls stay silent until they end.

import { PULSE } from "./limits.js";
import type { Transport } from "./transport.js";

/** One pulse for all waiters of a client; it stops when there are none. */
export class Pulse {
  readonly #transport: Transport;
  readonly #listeners = new Set<() => void>();
  #timer: NodeJS.Timeout | undefined;
  #asking = false;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Calls `silent` once when the server no longer answers. Returns a function that ends this. */
  listen(silent: () => void): () => void {
    this.#listeners.add(silent);
    this.#timer ??= this.#next();
    return () => {
      this.#listeners.delete(silent);
      if (this.#listeners.size === 0) this.#stop();
    };
  }

  #next(): NodeJS.Timeout {
    return setTimeout(() => void this.#ask(), PULSE);
  }

  #stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  async #ask(): Promise<void> {
    if (this.#asking) return;
    this.#asking = true;
    try {
      // Any answer shows that the server is there.
      await this.#transport.get("/healthz", PULSE).answer;
    } catch {
      this.#transport.forgetIdle();
      const listeners = [...this.#listeners];
      this.#listeners.clear();
      for (const silent of listeners) silent();
    } finally {
      this.#asking = false;
      this.#stop();
      if (this.#listeners.size > 0) this.#timer = this.#next();
    }
  }
}
