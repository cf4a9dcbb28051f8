package leasehold

import (
	"container/heap"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/protocol"
	"example.invalid/leasehold/sdk/go/internal/wire"
)

const (
	// together is how far ahead the keeper looks for more leases to renew in the same request.
	together = 50 * time.Millisecond
	// maxBatch is the most leases in one request.
	maxBatch = 512
	// batchBytes is the most bytes of one request: well below the 64 KiB that a server reads.
	batchBytes = 40 * 1024
)

// keeper renews the leases of one client and notices their loss, in a goroutine of its own that runs while there is
// anything to keep.
type keeper struct {
	client *Client

	mu    sync.Mutex
	queue dueQueue
	alarm clock.Alarm // nil while the goroutine does not run
	armed clock.Moment
}

// dueQueue is a heap of leases, the next one due first.
type dueQueue []*held

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].due < q[j].due }
func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *dueQueue) Push(x any) {
	h := x.(*held)
	h.index = len(*q)
	*q = append(*q, h)
}
func (q *dueQueue) Pop() any {
	old := *q
	h := old[len(old)-1]
	old[len(old)-1] = nil
	h.index, *q = -1, old[:len(old)-1]
	return h
}

// schedule puts a lease where it belongs in the queue: when it is new, and whenever its times have changed.
func (k *keeper) schedule(h *held) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.place(h)
	if k.queue.Len() > 0 {
		k.arm(k.queue[0].due)
	}
}

// place is schedule without the alarm.
func (k *keeper) place(h *held) {
	h.due = h.nextDue()
	switch {
	case h.due == clock.Never && h.index >= 0:
		heap.Remove(&k.queue, h.index)
	case h.due == clock.Never:
	case h.index >= 0:
		heap.Fix(&k.queue, h.index)
	default:
		heap.Push(&k.queue, h)
	}
}

// forget takes a lease out of the queue. The alarm may then ring for nothing, which is cheaper than setting it.
func (k *keeper) forget(h *held) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.index >= 0 {
		heap.Remove(&k.queue, h.index)
	}
}

// ring wakes the goroutine, if it runs.
func (k *keeper) ring() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.alarm != nil {
		k.arm(clock.Now())
	}
}

// arm sets the alarm to ring at this moment at the latest, and starts the goroutine if it does not run.
func (k *keeper) arm(at clock.Moment) {
	if k.alarm == nil {
		k.alarm, k.armed = clock.NewAlarm(), clock.Never
		go k.run(k.alarm)
	}
	if at < k.armed {
		k.armed = at
		k.alarm.Arm(at)
	}
}

// idleKeeper is how long the goroutine stays without a lease: a program that locks now and then need not start it each
// time.
const idleKeeper = 10 * time.Second

func (k *keeper) run(alarm clock.Alarm) {
	defer alarm.Close()
	var idleSince clock.Moment
	for {
		k.mu.Lock()
		at := clock.Now()
		var due []*held
		// What is due soon goes with what is due now.
		if k.queue.Len() > 0 && k.queue[0].due <= at {
			for k.queue.Len() > 0 && k.queue[0].due <= at.Add(together) {
				due = append(due, heap.Pop(&k.queue).(*held))
			}
		}
		k.mu.Unlock()

		var batch []renewal
		for _, h := range due {
			if one, ok := h.begin(together); ok {
				batch = append(batch, one)
			}
		}
		k.send(batch)

		k.mu.Lock()
		for _, h := range due {
			k.place(h)
		}
		if k.queue.Len() > 0 {
			idleSince, k.armed = 0, k.queue[0].due
		} else {
			at = clock.Now()
			if idleSince == 0 {
				idleSince = at
			}
			if at >= idleSince.Add(idleKeeper) || k.client.isClosed() {
				k.alarm = nil
				k.mu.Unlock()
				return
			}
			k.armed = idleSince.Add(idleKeeper)
		}
		alarm.Arm(k.armed)
		k.mu.Unlock()
		alarm.Wait()
	}
}

// send renews a batch, in as many requests as it takes, and does not wait for them.
func (k *keeper) send(batch []renewal) {
	for len(batch) > 0 {
		count, size := 0, 0
		for count < len(batch) && count < maxBatch {
			text, err := json.Marshal(batch[count].body())
			size += len(text) + 1
			if err != nil || size > batchBytes && count > 0 {
				break
			}
			count++
		}
		if count == 0 {
			count = 1
		}
		go k.renew(batch[:count:count])
		batch = batch[count:]
	}
}

func (r renewal) body() wire.Renew {
	return wire.Renew{
		LockName: r.of.name, LeaseID: r.of.id, ExtendByMs: protocol.CeilMs(r.extendBy), FencingToken: uint64(r.of.fence),
	}
}

// renew sends one request and gives each lease its answer.
func (k *keeper) renew(batch []renewal) {
	limit := protocol.RenewalTimeout(batch[0].of.ttl)
	body := wire.RenewMany{}
	for _, one := range batch {
		limit = protocol.Shortest(limit, protocol.RenewalTimeout(one.of.ttl))
		body.Leases = append(body.Leases, one.body())
	}
	answer, fault := k.client.transport.call(context.Background(), post(wire.Batch, body, limit))
	var results wire.RenewedMany
	if fault == nil {
		fault = readBatch(answer, &results, len(batch))
	}
	for i, one := range batch {
		if fault == nil {
			one.apply(results.Results[i])
		} else {
			one.of.fail(one, fault)
		}
		k.schedule(one.of)
	}
}

func readBatch(answer answer, results *wire.RenewedMany, count int) *Error {
	if answer.status != http.StatusOK {
		return answer.fault()
	}
	if fault := answer.read(results); fault != nil {
		return fault
	}
	if len(results.Results) != count {
		return answer.odd("the server did not answer each renewal")
	}
	return nil
}

// apply gives a lease its part of the answer.
func (r renewal) apply(text json.RawMessage) {
	var result wire.RenewedEach
	err := json.Unmarshal(text, &result)
	switch {
	case err == nil && result.Status == http.StatusOK && result.Renewed && result.ExpiresInMs != nil:
		r.of.confirm(r, protocol.FromMs(*result.ExpiresInMs))
	case err == nil && result.Status == http.StatusGone && result.Gone != "":
		r.of.refuse(Reason(result.Gone))
	default:
		r.of.fail(r, answer{status: result.Status, body: text}.fault())
	}
}
