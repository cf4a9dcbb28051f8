//go:build !linux

package leasehold

import "time"

var processStart = time.Now()

// now reads the deadline clock: on this platform the monotonic one, which may stand still while the machine is
// suspended.
func now() moment { return moment(time.Since(processStart)) + 1 }

func newAlarm() alarm { return newNaps() }
