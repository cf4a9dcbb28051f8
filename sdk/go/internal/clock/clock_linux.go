package clock

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

const (
	clockBoottime  = 7
	timerAbsolute  = 1
	timerFlags     = syscall.O_NONBLOCK | syscall.O_CLOEXEC
	bytesOfOneTick = 8
)

// hasBoottime says whether the kernel lets this process read the clock that counts suspend; a sandbox may not.
var hasBoottime = func() bool { _, ok := boottime(); return ok }()

var processStart = time.Now()

func boottime() (Moment, bool) {
	var ts syscall.Timespec
	// The system call never blocks, so the scheduler need not know of it.
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return Moment(ts.Nano()), errno == 0
}

// Now reads the deadline clock.
func Now() Moment {
	if hasBoottime {
		at, _ := boottime()
		return at
	}
	return Moment(time.Since(processStart)) + 1
}

// timer is an alarm on the deadline clock itself: it fires on time after the machine was suspended.
type timer struct{ file *os.File }

// NewAlarm returns an alarm that is not armed.
func NewAlarm() Alarm {
	if !hasBoottime {
		return NewNaps()
	}
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockBoottime, timerFlags, 0)
	if errno != 0 {
		return NewNaps()
	}
	return &timer{file: os.NewFile(fd, "timer")}
}

func (t *timer) Arm(at Moment) {
	if at < 1 {
		at = 1 // zero would disarm it
	}
	var when [2]syscall.Timespec // the interval, which is zero, and the time
	if at != Never {
		when[1] = syscall.NsecToTimespec(int64(at))
	}
	raw, err := t.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_, _, _ = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, timerAbsolute,
			uintptr(unsafe.Pointer(&when)), 0, 0, 0)
	})
}

func (t *timer) Wait() {
	var tick [bytesOfOneTick]byte
	if _, err := t.file.Read(tick[:]); err != nil {
		time.Sleep(time.Millisecond) // only if the system breaks its word; never a busy loop
	}
}

func (t *timer) Close() { _ = t.file.Close() }
