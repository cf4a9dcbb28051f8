import { connect } from "leasehold";

const locks = connect({ owner: "worker-7" });

// `await using` releases at the end of the block.
{
  await using lock = await locks.rwlock("config").read.lock({ wait: 10_000 });
  console.log(lock.mode, lock.state);
}

// The same by hand. `release` never rejects, so it hides no error of the work.
const lock = await locks.mutex("config").lock({ signal: AbortSignal.timeout(60_000) });
try {
  lock.check(); // throws if the lock is lost
  for await (const info of locks.list("conf")) console.log(info.name, info.holderCount, lock.state);
} finally {
  console.log(await lock.release());
}

await locks.close();
