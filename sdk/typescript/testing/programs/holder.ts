// A process for the tests: takes a lock, and says on standard output what it sees.

import { connect } from "../../src/index.js";

const [url, name = "", what, ttl] = process.argv.slice(2);
const mutex = connect({ url, ttl: Number(ttl) }).mutex(name);

const lock = await mutex.lock();
lock.signal.addEventListener("abort", () => {
  console.log(`signal: ${String(lock.lostReason)}`);
});
process.stdout.write("held\n");

function say(): void {
  console.log(`first look: ${lock.state}${lock.lostReason === undefined ? "" : ` ${lock.lostReason}`}`);
}

if (what === "block") {
  // Two ttls without a turn of the event loop.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2 * Number(ttl));
  say();
  setInterval(() => lock.state, 1_000);
} else {
  // The first turn after a standstill looks at the lock.
  let last = performance.now();
  let lost = false;
  setInterval(() => {
    const now = performance.now();
    if (now - last > 300) say();
    last = now;
    if (lost && lock.state === "held") console.log("looked held after lost");
    lost ||= lock.state === "lost";
  }, 1);
}
