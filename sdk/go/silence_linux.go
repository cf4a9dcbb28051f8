package leasehold

import "syscall"

// noticeSilence lets the system notice within seconds that a server died silently, even while the client only waits.
// The dialer sets how often it probes.
func noticeSilence(_, _ string, conn syscall.RawConn) error {
	const probes = 3
	return conn.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, probes)
	})
}
