// What test files share: one bench per file, and clients of it that are closed at the end.

import { after, before } from "node:test";

import type { ConnectOptions, Locks } from "../../src/index.js";
import { connect } from "../../src/index.js";
import { Bench } from "./bench.js";

let bench: Bench | undefined;
const clients: Locks[] = [];
let names = 0;

/** Starts the file's bench before its tests, and ends it after them. */
export function useBench(): void {
  before(async () => {
    bench = await Bench.start();
  });
  after(async () => {
    await Promise.all(clients.map((locks) => locks.close()));
    await bench?.stop();
  });
}

export function theBench(): Bench {
  if (bench === undefined) throw new Error("no bench was started");
  return bench;
}

/** A client straight to the server, with a ttl that a slow machine can keep. */
export function client(options: ConnectOptions = {}): Locks {
  const locks = connect({ url: theBench().server, ttl: 10_000, ...options });
  clients.push(locks);
  return locks;
}

/** A name that no other test uses. */
export function fresh(): string {
  return `test/${String(process.pid)}/${String(++names)}`;
}
