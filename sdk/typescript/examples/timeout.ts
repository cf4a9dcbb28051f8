import { connect, TimeoutError } from "leasehold";

const mutex = connect().mutex("deploy");

try {
  await mutex.run(() => console.log("deploying"), { wait: 5_000 });
} catch (error) {
  if (!(error instanceof TimeoutError)) throw error; // for example, the server is down
  console.log("another deployment has run for five seconds; try later");
}
