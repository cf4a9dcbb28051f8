// The public interface of the package.

export type { AddressOptions } from "./address.js";
export type { LockState } from "./belief.js";
export type { ListOptions, Locks, RevokeOptions } from "./client.js";
export { connect } from "./client.js";
export type { ErrorKind, LostReason } from "./errors.js";
export { LeaseholdError, lossOf, LostError, TimeoutError } from "./errors.js";
export { fenceText } from "./fence.js";
export type { Lock } from "./lock.js";
export type { Body, Lockable, Mutex, RwLock, Semaphore } from "./lockables.js";
export type { ConnectOptions, LockOptions, WaitOptions } from "./options.js";
export type { Released } from "./release.js";
export type { HolderInfo, LockInfo, Mode, WaiterInfo } from "./wire.js";
