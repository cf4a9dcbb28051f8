// Lease ids: the caller makes a new one for every acquisition, and it is the only proof of holding a lease.

import { randomBytes } from "node:crypto";

/** A new lease id: 128 random bits as 22 characters of base64url. */
export function randomLeaseId(): string {
  return randomBytes(16).toString("base64url");
}
