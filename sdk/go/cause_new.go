//go:build go1.20

package leasehold

import "context"

// withCause returns a context that is cancelled with a cause.
func withCause(parent context.Context) (context.Context, func(error)) {
	ctx, cancel := context.WithCancelCause(parent)
	return ctx, cancel
}
