// What runs on the renewing thread: the loop, with connections of its own.

import { parentPort, workerData } from "node:worker_threads";

import type { Address } from "./address.js";
import { Clock } from "./clock.js";
import type { Message } from "./renewal-loop.js";
import { RenewalLoop } from "./renewal-loop.js";
import { Transport } from "./transport.js";

/** What the thread gets when it starts. */
export interface ThreadData {
  readonly address: Address;
  readonly clock: SharedArrayBuffer;
}

/** The user's thread: sends messages, and gets the numbers of leases that are lost. */
export interface UserThread {
  on(event: "message", take: (message: Message) => void): unknown;
  postMessage(number: number): void;
}

/** A connection is kept between two renewals of the default ttl; the system probes it every second. */
const KEPT = 60_000;

/** Renews what the user's thread hands over. */
export function attend({ address, clock }: ThreadData, user: UserThread): void {
  const loop = new RenewalLoop(new Transport(address, KEPT), new Clock(clock), (number) => {
    user.postMessage(number);
  });
  user.on("message", (message) => {
    loop.take(message);
  });
}

if (parentPort !== null) attend(workerData as ThreadData, parentPort);
