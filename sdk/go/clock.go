package leasehold

import (
	"math"
	"time"

	"example.invalid/leasehold/sdk/go/internal/protocol"
)

// moment is a reading of the deadline clock in nanoseconds. The clock counts the time that the machine was suspended
// and ignores steps of the wall clock: CLOCK_BOOTTIME on Linux, else the monotonic clock.
type moment int64

// never is a moment that does not come.
const never moment = math.MaxInt64

// add returns the moment after d, at most never.
func (m moment) add(d time.Duration) moment {
	if d > 0 && m > never-moment(d) {
		return never
	}
	return m + moment(d)
}

// since returns the time from an earlier moment to this one; zero if that was later.
func (m moment) since(earlier moment) time.Duration {
	if m <= earlier {
		return 0
	}
	return time.Duration(m - earlier)
}

func earliest(a, b moment) moment {
	if a < b {
		return a
	}
	return b
}

// deadline is the moment until which the client may rely on a grant that answers a request sent at sent.
func deadline(sent moment, waited, left, ttl time.Duration) moment {
	return sent.add(protocol.Span(waited, left, ttl))
}

// alarm wakes the goroutine that keeps leases.
type alarm interface {
	// arm makes wait return at this moment, also if it waits already. never disarms it.
	arm(at moment)
	// wait waits for the armed moment. It may return early.
	wait()
	// close frees what the alarm holds.
	close()
}

// longestNap bounds how late an alarm can be that does not count suspend: the look at the clock itself always does.
const longestNap = time.Second

// naps is the alarm for systems without a timer on the deadline clock.
type naps struct{ bell chan moment }

func newNaps() alarm { return &naps{bell: make(chan moment, 1)} }

func (n *naps) arm(at moment) {
	for {
		select {
		case n.bell <- at:
			return
		case <-n.bell:
		}
	}
}

func (n *naps) wait() {
	at := <-n.bell
	for {
		left := at.since(now())
		if left == 0 {
			return
		}
		timer := time.NewTimer(protocol.Shortest(left, longestNap))
		select {
		case at = <-n.bell:
			timer.Stop()
		case <-timer.C:
			if left > longestNap {
				continue
			}
			return
		}
	}
}

func (n *naps) close() {}
