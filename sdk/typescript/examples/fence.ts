import { connect } from "leasehold";

// With a database the table keeps the highest fence, and the update affects no row if a newer holder has written:
// UPDATE report SET body = $1, fence = $2 WHERE id = 7 AND fence <= $2
const row = { body: "", fence: 0 };
function update(body: string, fence: number): boolean {
  if (row.fence > fence) return false;
  Object.assign(row, { body, fence });
  return true;
}

const mutex = connect().mutex("report-7");
const stale = await mutex.run((lock) => lock.fence);
await mutex.run((lock) => {
  if (!update("new", lock.fence)) throw new Error("a newer holder has written");
});
console.log(update("old", stale) ? "overwritten" : "the stale write was refused");
