package leasehold

import "context"

// spec is what a face asks for.
type spec struct {
	name  string
	mode  Mode
	limit uint32
	opts  []Option
	// badLimit is a limit that is no number of permits.
	badLimit bool
}

func (s spec) options(c *Client) options {
	o := c.defaults
	for _, option := range s.opts {
		option(&o)
	}
	return o
}

// check reports a bad name or option, before anything is sent.
func (s spec) check(c *Client) (string, error) {
	name, err := normalName(s.name)
	if err != nil {
		return "", err
	}
	if s.badLimit {
		return "", invalid("the limit of a semaphore must be at least 1")
	}
	o := s.options(c)
	return name, o.check()
}

// Mutex is a lock that one client holds alone. It is the write side of the [RWMutex] of the same name.
type Mutex struct {
	client *Client
	spec   spec
}

// Mutex returns the mutex of a name. It sends nothing.
func (c *Client) Mutex(name string, opts ...Option) *Mutex {
	return &Mutex{client: c, spec: spec{name: name, mode: Exclusive, opts: opts}}
}

// Lock waits for its turn, which is first come, first served where the server's store keeps a queue. It ends with its
// context, or with the option [Wait]; then it leaves nothing behind.
//
// The error is an [*Error]: of [KindTimeout] if the lock did not come free in time, of [KindAborted] and wrapping
// ctx.Err() if the context ended, else what is wrong.
func (m *Mutex) Lock(ctx context.Context) (*Lock, error) { return m.client.acquire(ctx, m.spec, false) }

// TryLock makes one attempt. The error is [ErrHeld] if another client holds the lock; a server that cannot be reached
// is an [*Error].
func (m *Mutex) TryLock(ctx context.Context) (*Lock, error) {
	return m.client.acquire(ctx, m.spec, true)
}

// RWMutex is a lock that readers share and a writer holds alone.
type RWMutex struct {
	client      *Client
	write, read spec
}

// RWMutex returns the reader-writer lock of a name. It sends nothing.
func (c *Client) RWMutex(name string, opts ...Option) *RWMutex {
	return &RWMutex{
		client: c,
		write:  spec{name: name, mode: Exclusive, opts: opts},
		read:   spec{name: name, mode: Shared, opts: opts},
	}
}

// Lock waits for its turn to write; see [Mutex.Lock].
func (m *RWMutex) Lock(ctx context.Context) (*Lock, error) {
	return m.client.acquire(ctx, m.write, false)
}

// TryLock makes one attempt to write; see [Mutex.TryLock].
func (m *RWMutex) TryLock(ctx context.Context) (*Lock, error) {
	return m.client.acquire(ctx, m.write, true)
}

// RLock waits for its turn to read; see [Mutex.Lock].
func (m *RWMutex) RLock(ctx context.Context) (*Lock, error) {
	return m.client.acquire(ctx, m.read, false)
}

// TryRLock makes one attempt to read; see [Mutex.TryLock].
func (m *RWMutex) TryRLock(ctx context.Context) (*Lock, error) {
	return m.client.acquire(ctx, m.read, true)
}

// Semaphore is a lock that up to a limit of clients hold at a time.
type Semaphore struct {
	client *Client
	spec   spec
}

// Semaphore returns the semaphore of a name. All clients must use the same limit; another one is an error of
// [KindMismatch] while the name is in use. It sends nothing.
func (c *Client) Semaphore(name string, limit int, opts ...Option) *Semaphore {
	bad := limit < 1 || int64(limit) > 1<<32-1
	return &Semaphore{
		client: c,
		spec:   spec{name: name, mode: Permit, limit: uint32(limit), opts: opts, badLimit: bad},
	}
}

// Acquire waits for a permit; see [Mutex.Lock].
func (s *Semaphore) Acquire(ctx context.Context) (*Lock, error) {
	return s.client.acquire(ctx, s.spec, false)
}

// TryAcquire makes one attempt to get a permit; see [Mutex.TryLock].
func (s *Semaphore) TryAcquire(ctx context.Context) (*Lock, error) {
	return s.client.acquire(ctx, s.spec, true)
}
