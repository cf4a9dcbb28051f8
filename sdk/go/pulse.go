package leasehold

import (
	"context"
	"sync"
	"time"

	"example.invalid/leasehold/sdk/go/internal/wire"
)

const (
	// pulseEvery is how often the client asks whether the server still answers, while an acquire waits.
	pulseEvery = 2 * time.Second
	// pulseLate is how long that answer may take.
	pulseLate = 2 * time.Second
)

// pulse checks, for all waiting acquires of a client, that the server still answers: their own calls stay silent until
// they end. It runs while there is an acquire that waits.
type pulse struct {
	transport *transport

	mu        sync.Mutex
	running   bool
	listeners map[*context.CancelFunc]struct{}
}

// listen returns a context that ends when the server falls silent.
func (p *pulse) listen(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listeners == nil {
		p.listeners = map[*context.CancelFunc]struct{}{}
	}
	p.listeners[&cancel] = struct{}{}
	if !p.running {
		p.running = true
		go p.run()
	}
	return ctx, func() {
		p.mu.Lock()
		delete(p.listeners, &cancel)
		p.mu.Unlock()
		cancel()
	}
}

func (p *pulse) run() {
	for {
		time.Sleep(pulseEvery)
		p.mu.Lock()
		if len(p.listeners) == 0 {
			p.running = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		// Any answer shows that the server is there.
		if _, fault := p.transport.call(context.Background(), get(wire.Healthz, pulseLate)); fault == nil {
			continue
		}
		p.transport.forgetIdle()
		p.mu.Lock()
		for cancel := range p.listeners {
			(*cancel)()
		}
		p.mu.Unlock()
	}
}
