//go:build !go1.20

package leasehold

import "context"

// withCause returns a context that is cancelled; this version of Go keeps no cause.
func withCause(parent context.Context) (context.Context, func(error)) {
	ctx, cancel := context.WithCancel(parent)
	return ctx, func(error) { cancel() }
}
