import { setTimeout } from "node:timers/promises";

import { connect } from "leasehold";

const permits = connect().semaphore("partner-api", 2); // at most two at once, on all machines together
let running = 0;

await Promise.all(
  ["a", "b", "c", "d"].map((job) =>
    permits.run(async () => {
      running += 1;
      if (running > 2) throw new Error("too many at once");
      await setTimeout(50);
      running -= 1;
      console.log(`job ${job} is done`);
    }),
  ),
);
