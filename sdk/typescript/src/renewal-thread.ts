// What runs on the renewing thread: the loop, with connections of its own.

import { parentPort, workerData } from "node:worker_threads";

import type { Address } from "./address.js";
import { Clock } from "./clock.js";
import type { Lease } from "./renewal-loop.js";
import { RenewalLoop } from "./renewal-loop.js";
import { Transport } from "./transport.js";

/** What the thread gets when it starts. */
export interface ThreadData {
  readonly address: Address;
  readonly clock: SharedArrayBuffer;
}

/** What the user's thread sends: a lease to renew, and numbers of leases to forget. */
export interface ThreadMessage {
  readonly hold?: Lease;
  readonly forget: readonly number[];
}

/** A connection is kept between two renewals of the default ttl; the system probes it every second. */
const KEPT = 60_000;

const port = parentPort;
if (port !== null) {
  const { address, clock } = workerData as ThreadData;
  const loop = new RenewalLoop(new Transport(address, KEPT), new Clock(clock), (number) => {
    port.postMessage(number);
  });
  port.on("message", ({ hold, forget }: ThreadMessage) => {
    loop.forget(forget);
    if (hold !== undefined) loop.hold(hold);
  });
}
