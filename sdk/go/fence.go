package leasehold

import "fmt"

// Fence is a fencing token: a number that rises from grant to grant of one name.
//
// Pass it along with every write to what the lock protects, and make that resource refuse a write whose fence is below
// the highest it has seen. Then a holder that was paused past its lease can do no harm.
type Fence uint64

// String returns the fence as 15 digits with leading zeros, which sort as text as the numbers do.
func (f Fence) String() string { return fmt.Sprintf("%015d", uint64(f)) }
