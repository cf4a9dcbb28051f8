// What runs on the renewing thread: the loop, with connections of its own.

import type { MessagePort } from "node:worker_threads";
import { parentPort, receiveMessageOnPort, workerData } from "node:worker_threads";

import type { Address } from "./address.js";
import { Clock } from "./clock.js";
import type { Message } from "./renewal-loop.js";
import { RenewalLoop } from "./renewal-loop.js";
import { Transport } from "./transport.js";

/** What the thread gets when it starts. */
export interface ThreadData {
  readonly address: Address;
  readonly clock: SharedArrayBuffer;
  /** Where messages wait. */
  readonly inbox: MessagePort;
  /** Where the thread writes when it next looks by itself. */
  readonly sleeps: SharedArrayBuffer;
}

/** The user's thread: wakes this one by any message, and gets the numbers of leases that are lost. */
export interface UserThread {
  on(event: "message", wake: () => void): unknown;
  postMessage(number: number): void;
}

/** A connection is kept between two renewals of the default ttl; the system probes it every second. */
const KEPT = 60_000;

/** Renews what the user's thread hands over. */
export function attend({ address, clock, inbox, sleeps }: ThreadData, user: UserThread): void {
  const moment = new BigInt64Array(sleeps);
  const box = {
    take: () => receiveMessageOnPort(inbox)?.message as Message | undefined,
    sleeps: (until: bigint) => void Atomics.store(moment, 0, until),
  };
  const loop = new RenewalLoop(new Transport(address, KEPT), new Clock(clock), box, (number) => {
    user.postMessage(number);
  });
  user.on("message", () => {
    loop.look();
  });
}

if (parentPort !== null) attend(workerData as ThreadData, parentPort);
