import { setTimeout } from "node:timers/promises";

import { connect, LostError } from "leasehold";

const locks = connect({ ttl: 3_000 });

async function migrate(signal: AbortSignal): Promise<void> {
  for (let batch = 1; batch <= 100; batch++) {
    // `fetch`, streams, timers and most libraries take a signal as well.
    await setTimeout(100, undefined, { signal });
  }
}

try {
  await locks.mutex("migration").run(async (lock) => {
    await locks.revoke("migration", { now: true }); // as an operator would
    await migrate(lock.signal);
  });
} catch (error) {
  if (!(error instanceof LostError)) throw error;
  console.log(`stopped: ${error.reason}`);
}
