package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/history"
)

// turns are the turns of one task.
type turns struct {
	worker   *worker
	task     uint16
	dice     *rand.Rand
	resource *resource
	writes   uint64
}

func newTurns(w *worker, task uint16) (*turns, error) {
	resource, err := dial(w.task.Resource)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the resource: %w", err)
	}
	seed := w.task.Seed + int64(w.task.Worker)*1_000_003 + int64(task)*7919
	return &turns{worker: w, task: task, dice: rand.New(rand.NewSource(seed)), resource: resource}, nil
}

// hold is one turn: its lock, and what its records have in common.
type hold struct {
	*turns
	place  place
	record history.Record
	lock   *leasehold.Lock
}

func (t *turns) upTo(ms int) time.Duration {
	return time.Duration(t.dice.Int63n(int64(ms)*int64(time.Millisecond) + 1))
}

// choose picks a lock, half of the time a hot one.
func (t *turns) choose() place {
	all := t.worker.task.Locks
	if t.dice.Intn(2) == 0 {
		var hot []place
		for _, one := range all {
			if one.Hot {
				hot = append(hot, one)
			}
		}
		if len(hot) > 0 {
			all = hot
		}
	}
	return all[t.dice.Intn(len(all))]
}

func (t *turns) turn() {
	h := hold{turns: t, place: t.choose()}
	h.record = history.Record{Place: h.place.Place, Task: t.task, Claim: t.worker.claim()}
	if !h.acquire() {
		return
	}
	h.keep()
}

// write records something about this turn at a moment.
func (h *hold) write(kind history.Kind, at clock.Moment, deadline, value uint64) {
	record := h.record
	record.Kind, record.At, record.Deadline, record.Value = kind, uint64(at), deadline, value
	h.worker.write(record)
}

// acquire takes the lock in one of several ways, and says whether it has it.
func (h *hold) acquire() bool {
	w := h.worker
	wait, value := time.Duration(0), uint64(0)
	try := h.dice.Intn(3) == 0
	opts := []leasehold.Option{leasehold.Owner(fmt.Sprintf("worker-%d-%d", w.task.Worker, h.record.Claim))}
	switch {
	case try:
	case h.dice.Intn(10) == 0:
		value = math.MaxUint64
	default:
		wait = time.Millisecond + h.upTo(299)
		value = uint64(wait)
		opts = append(opts, leasehold.Wait(wait))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// A wait without a limit must not outlast the worker.
	go func() {
		select {
		case <-w.finished:
			cancel()
		case <-ctx.Done():
		}
	}()
	if w.task.Cancels && !try && h.dice.Intn(10) == 0 {
		timer := time.AfterFunc(h.upTo(20), cancel)
		defer timer.Stop()
	}
	face := h.face(opts, try)
	h.write(history.AcquireCall, clock.Now(), uint64(w.ttl), value)
	lock, err := face(ctx)
	at := clock.Now()
	switch {
	case err == nil:
		h.lock = lock
		h.record.Lease = history.Hash([]byte(lock.LeaseID()))
		h.record.Fence = uint64(lock.Fence())
		h.write(history.Granted, at, uint64(lock.Deadline()), 0)
		return true
	case errors.Is(err, leasehold.ErrHeld), leasehold.KindOf(err) == leasehold.KindTimeout:
		h.write(history.Busy, at, 0, 0)
	case errors.Is(err, context.Canceled):
		h.write(history.AcquireDropped, at, 0, 0)
	default:
		h.write(history.AcquireFailed, at, 0, 0)
		time.Sleep(h.upTo(20))
	}
	return false
}

// take is a method that takes a lock.
type take func(context.Context) (*leasehold.Lock, error)

// face chooses how to take the lock, and sets the mode of the records.
func (h *hold) face(opts []leasehold.Option, try bool) take {
	pick := func(wait, once take) take {
		if try {
			return once
		}
		return wait
	}
	client := h.worker.client
	switch h.place.Kind {
	case "rwlock":
		face := client.RWMutex(h.place.Name, opts...)
		if h.dice.Intn(2) == 0 {
			h.record.Mode = history.ModeOf("shared")
			return pick(face.RLock, face.TryRLock)
		}
		return pick(face.Lock, face.TryLock)
	case "semaphore":
		h.record.Mode = history.ModeOf("permit")
		face := client.Semaphore(h.place.Name, h.place.Limit, opts...)
		return pick(face.Acquire, face.TryAcquire)
	}
	face := client.Mutex(h.place.Name, opts...)
	return pick(face.Lock, face.TryLock)
}

// look looks at the lock and records what it sees. It says whether the lock is held.
func (h *hold) look() bool {
	at := clock.Now()
	until := h.lock.Deadline()
	err := h.lock.Check()
	if err == nil {
		h.write(history.Held, at, uint64(until), 0)
		return true
	}
	var lost *leasehold.LostError
	value := uint64(2)
	if errors.As(err, &lost) {
		switch lost.Reason {
		case leasehold.DeadlinePassed:
			value = 0
		case leasehold.Expired, leasehold.NotFound, leasehold.Superseded, leasehold.Revoked:
			value = 1
		}
	}
	h.write(history.Lost, clock.Now(), 0, value)
	return false
}

// keep holds the lock for a while, uses the resource, and releases it.
func (h *hold) keep() {
	stay := h.upTo(5)
	if h.worker.task.Lingers && h.dice.Intn(60) == 0 {
		stay = h.worker.ttl/2 + time.Duration(h.dice.Int63n(int64(h.worker.ttl)))
	}
	uses := h.record.Mode == 0 && h.dice.Intn(3) < 2
	if uses {
		h.ask(enter)
	}
	began := clock.Now()
	end, writeAt := began.Add(stay), began.Add(time.Duration(h.dice.Int63n(int64(stay)+1)))
	held := h.look()
	for ; held && clock.Now() < end; held = h.look() {
		time.Sleep(time.Millisecond)
		// Without another look before it: a worker that was paused just now writes with an old fence.
		if uses && clock.Now() >= writeAt {
			h.use()
			writeAt = clock.Never
		}
	}
	if uses {
		if held && writeAt != clock.Never {
			h.use()
		}
		h.ask(leave)
	}
	if !held || !h.look() {
		return // a lost lock is not released
	}
	h.write(history.ReleaseCall, clock.Now(), 0, 0)
	err := h.lock.Unlock(context.Background())
	at := clock.Now()
	switch {
	case err == nil:
		h.write(history.Released, at, 0, 0)
	case errors.Is(err, leasehold.ErrGone):
		h.write(history.ReleasedNothing, at, 0, 0)
	default:
		h.write(history.ReleaseFailed, at, 0, 0)
	}
}

// use writes to the resource.
func (h *hold) use() {
	h.writes++
	number := uint64(h.task)<<48 + h.writes
	h.write(history.WriteCall, clock.Now(), 0, number)
	taken := h.ask(write)
	kind := history.WriteRejected
	if taken {
		kind = history.WriteTaken
	}
	h.write(kind, clock.Now(), 0, number)
}

func (h *hold) ask(what verb) bool {
	taken, err := h.resource.ask(what, h.record, h.worker.task.Worker)
	if err != nil {
		log.Fatal("the resource does not answer: ", err)
	}
	return taken
}
