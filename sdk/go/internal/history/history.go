// Package history writes the records by which a worker of `leasehold torture` tells what it did and saw.
package history

import (
	"encoding/binary"
	"os"
)

// Kind is what happened.
type Kind byte

// The kinds that a worker writes. docs/sdk-protocol.md says what their fields mean.
const (
	AcquireCall     Kind = 0
	Granted         Kind = 1
	Busy            Kind = 2
	AcquireFailed   Kind = 3
	AcquireDropped  Kind = 4
	Held            Kind = 5
	Lost            Kind = 6
	ReleaseCall     Kind = 11
	Released        Kind = 12
	ReleasedNothing Kind = 13
	ReleaseFailed   Kind = 14
	WriteCall       Kind = 18
	WriteTaken      Kind = 19
	WriteRejected   Kind = 20
	Begin           Kind = 26
	End             Kind = 27
)

// KindOf finds a kind by its name in the vectors; 255 if there is none.
func KindOf(name string) Kind {
	kind, known := map[string]Kind{
		"AcquireCall": AcquireCall, "Granted": Granted, "Busy": Busy, "AcquireFailed": AcquireFailed,
		"AcquireDropped": AcquireDropped, "Held": Held, "Lost": Lost, "ReleaseCall": ReleaseCall,
		"Released": Released, "ReleasedNothing": ReleasedNothing, "ReleaseFailed": ReleaseFailed,
		"WriteCall": WriteCall, "WriteTaken": WriteTaken, "WriteRejected": WriteRejected, "Begin": Begin, "End": End,
	}[name]
	if !known {
		return 255
	}
	return kind
}

// Mode is how a lock is claimed.
type Mode byte

// ModeOf finds a mode by its name.
func ModeOf(name string) Mode {
	switch name {
	case "shared":
		return 1
	case "permit":
		return 2
	}
	return 0
}

// Record is one of them.
type Record struct {
	Kind        Kind
	Mode        Mode
	Place, Task uint16
	Worker      uint32
	Claim       uint64
	At          uint64
	Lease       uint64
	Fence       uint64
	Deadline    uint64
	Value       uint64
}

// Size is the number of bytes of a record.
const Size = 96

// Bytes returns the record as it is written.
func (r Record) Bytes() [Size]byte {
	var b [Size]byte
	little := binary.LittleEndian
	b[0], b[1] = byte(r.Kind), byte(r.Mode)
	little.PutUint16(b[4:], r.Place)
	little.PutUint16(b[6:], r.Task)
	little.PutUint32(b[8:], r.Worker)
	for i, number := range []uint64{r.Claim, r.At, r.Lease, r.Fence, r.Deadline, r.Value} {
		little.PutUint64(b[16+8*i:], number)
	}
	little.PutUint64(b[88:], Hash(b[:88]))
	return b
}

// Hash is FNV-1a with 64 bits.
func Hash(bytes []byte) uint64 {
	hash := uint64(0xcbf29ce484222325)
	for _, one := range bytes {
		hash = (hash ^ uint64(one)) * 0x100000001b3
	}
	return hash
}

// Log is a file of records.
type Log struct{ file *os.File }

// Open opens a log to append to.
func Open(path string) (*Log, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return &Log{file: file}, err
}

// Write appends a record by one plain write, so that it survives a SIGKILL.
func (l *Log) Write(record Record) error {
	bytes := record.Bytes()
	_, err := l.file.Write(bytes[:])
	return err
}
