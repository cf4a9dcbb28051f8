// The records of a torture worker, as `docs/sdk-protocol.md` says.

export const KINDS = {
  AcquireCall: 0,
  Granted: 1,
  Busy: 2,
  AcquireFailed: 3,
  AcquireDropped: 4,
  Held: 5,
  Lost: 6,
  ReleaseCall: 11,
  Released: 12,
  ReleasedNothing: 13,
  ReleaseFailed: 14,
  WriteCall: 18,
  WriteTaken: 19,
  WriteRejected: 20,
  Begin: 26,
  End: 27,
} as const;

export const MODES = { exclusive: 0, shared: 1, permit: 2 } as const;

export interface TortureRecord {
  readonly kind: keyof typeof KINDS;
  readonly mode?: keyof typeof MODES;
  readonly place?: number;
  readonly task?: number;
  readonly worker: number;
  readonly claim?: bigint;
  readonly at: bigint;
  readonly lease?: bigint;
  readonly fence?: bigint;
  readonly deadline?: bigint;
  readonly value?: bigint;
}

const PRIME = 0x100000001b3n;

/** FNV-1a with 64 bits. */
export function fnv1a(bytes: Uint8Array): bigint {
  let hash = 0xcbf29ce484222325n;
  for (const byte of bytes) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * PRIME);
  return hash;
}

/** A record as 96 bytes. */
export function encode(record: TortureRecord): Buffer {
  const bytes = Buffer.alloc(96);
  bytes.writeUInt8(KINDS[record.kind], 0);
  bytes.writeUInt8(MODES[record.mode ?? "exclusive"], 1);
  bytes.writeUInt16LE(record.place ?? 0, 4);
  bytes.writeUInt16LE(record.task ?? 0, 6);
  bytes.writeUInt32LE(record.worker, 8);
  bytes.writeBigUInt64LE(record.claim ?? 0n, 16);
  bytes.writeBigUInt64LE(record.at, 24);
  bytes.writeBigUInt64LE(record.lease ?? 0n, 32);
  bytes.writeBigUInt64LE(record.fence ?? 0n, 40);
  bytes.writeBigUInt64LE(record.deadline ?? 0n, 48);
  bytes.writeBigUInt64LE(record.value ?? 0n, 56);
  bytes.writeBigUInt64LE(fnv1a(bytes.subarray(0, 88)), 88);
  return bytes;
}
