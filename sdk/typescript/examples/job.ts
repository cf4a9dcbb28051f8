import { connect } from "leasehold";

const locks = connect(); // the server at LEASEHOLD_URL
const report = locks.mutex("nightly-report", { ttl: 30_000 });

const rows = await report.tryRun((lock) => {
  console.log(`building the report, fence ${lock.fenceText}`);
  return 42;
});
console.log(rows === null ? "another machine builds it" : `${String(rows)} rows`);
