// Package clock reads the deadline clock, and wakes by it.
package clock

import (
	"math"
	"time"

	"example.invalid/leasehold/sdk/go/internal/protocol"
)

// Moment is a reading of the deadline clock in nanoseconds. The clock counts the time that the machine was suspended
// and ignores steps of the wall clock: CLOCK_BOOTTIME on Linux, else the monotonic clock.
type Moment int64

// Never is a moment that does not come.
const Never Moment = math.MaxInt64

// Add returns the moment after d, at most Never.
func (m Moment) Add(d time.Duration) Moment {
	if d > 0 && m > Never-Moment(d) {
		return Never
	}
	return m + Moment(d)
}

// Since returns the time from an earlier Moment to this one; zero if that was later.
func (m Moment) Since(earlier Moment) time.Duration {
	if m <= earlier {
		return 0
	}
	return time.Duration(m - earlier)
}

// Earliest returns the earlier of two moments.
func Earliest(a, b Moment) Moment {
	if a < b {
		return a
	}
	return b
}

// Alarm wakes the goroutine that keeps leases.
type Alarm interface {
	// Arm makes Wait return at this moment, also if it waits already. Never disarms it.
	Arm(at Moment)
	// Wait waits for the armed moment. It may return early.
	Wait()
	// Close frees what the alarm holds.
	Close()
}

// longestNap bounds how late an alarm can be that does not count suspend: the look at the clock itself always does.
const longestNap = time.Second

// naps is the alarm for systems without a timer on the deadline clock.
type naps struct{ bell chan Moment }

// NewNaps returns the alarm for systems without a timer on the deadline clock, not armed.
func NewNaps() Alarm { return &naps{bell: make(chan Moment, 1)} }

func (n *naps) Arm(at Moment) {
	for {
		select {
		case n.bell <- at:
			return
		case <-n.bell:
		}
	}
}

func (n *naps) Wait() {
	at := <-n.bell
	for {
		left := at.Since(Now())
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

func (n *naps) Close() {}
