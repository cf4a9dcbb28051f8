// Sends a release, and again while the server does not answer: for locks that end, and for what an acquire may have
// got.

import type { Engine } from "./engine.js";
import { LeaseholdError } from "./errors.js";
import { MS, pause } from "./limits.js";
import { segment } from "./name.js";
import type { ReleaseBody } from "./wire.js";
import { readRelease } from "./wire.js";

/** Whether there was anything to release. */
export type Released = "released" | "gone";

/**
 * Releases a lease or a place in the queue. If the lease was `held` until now, and the server finds nothing after a try
 * without an answer, that try may have done it: this counts as released.
 */
export async function release(
  engine: Engine,
  name: string,
  body: ReleaseBody,
  held: boolean,
  started: bigint = engine.clock.now(),
): Promise<Released> {
  const { requestTimeout, releaseTimeout } = engine.settings;
  const path = `/v1/locks/${segment(name)}/release`;
  const end = started + BigInt(releaseTimeout) * MS;
  let now = started;
  let unanswered = false;
  const made = (again: boolean) => {
    unanswered ||= again;
    return body;
  };
  for (let faults = 0; ; faults++) {
    const left = Number((end - now) / MS);
    try {
      const within = Math.max(1, Math.min(requestTimeout, left));
      const done = readRelease(await engine.transport.post(path, made, within).answer);
      return done || (held && unanswered) ? "released" : "gone";
    } catch (error) {
      if (!(error instanceof LeaseholdError) || !error.retryable) throw error;
      unanswered ||= error.kind === "network_timeout" || error.kind === "unavailable";
      const rest = pause(faults, Math.random());
      if (engine.clock.now() + BigInt(Math.ceil(rest)) * MS >= end) throw error;
      await new Promise((resolve) => setTimeout(resolve, rest));
      now = engine.clock.now();
    }
  }
}
