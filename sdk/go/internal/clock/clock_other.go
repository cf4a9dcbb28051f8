//go:build !linux

package clock

import "time"

var processStart = time.Now()

// Now reads the deadline clock: on this platform the monotonic one, which may stand still while the machine is
// suspended.
func Now() Moment { return Moment(time.Since(processStart)) + 1 }

// NewAlarm returns an alarm that is not armed.
func NewAlarm() Alarm { return NewNaps() }
