package leasehold

import (
	"context"
	"math/rand"
	"sync"
	"time"
)

const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

var (
	diceMu sync.Mutex
	dice   = rand.New(rand.NewSource(time.Now().UnixNano())) // spreads load; nothing secret is made from it
)

// chance returns a random number from zero to below one.
func chance() float64 {
	diceMu.Lock()
	defer diceMu.Unlock()
	return dice.Float64()
}

// pauseAfter is how long to wait after this many faults in a row before: it doubles, and varies by half.
func pauseAfter(faults int) time.Duration {
	pause := longestPause
	if faults < 6 {
		pause = shortest(firstPause<<uint(faults), longestPause)
	}
	return time.Duration(float64(pause) * (0.5 + chance()/2))
}

// sleep waits, and ends early with the context.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
