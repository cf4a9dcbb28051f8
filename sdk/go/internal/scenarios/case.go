package scenarios

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
	"example.invalid/leasehold/sdk/go/internal/bench"
	"example.invalid/leasehold/sdk/go/internal/protocol"
)

const (
	// within is how long a step may take unless it says so.
	within = 10 * time.Second
	// storm is for how long a call that fails is repeated in bad weather.
	storm = 10 * time.Second
	// pause is the time between two looks.
	pause = 20 * time.Millisecond
)

// scenario is one run of a case: its clients, its locks, and what runs in the background.
type scenario struct {
	bench   *bench.Bench
	network Network
	prefix  string
	clients map[string]*leasehold.Client
	locks   map[string]*leasehold.Lock
	started map[string]*started
	caught  string
}

type started struct {
	cancel context.CancelFunc
	done   chan struct{}
	lock   *leasehold.Lock
	err    error
}

func newCase(bench *bench.Bench, network Network) *scenario {
	var random [12]byte
	_, _ = rand.Read(random[:])
	return &scenario{
		bench: bench, network: network, prefix: hex.EncodeToString(random[:]) + "/",
		clients: map[string]*leasehold.Client{}, locks: map[string]*leasehold.Lock{}, started: map[string]*started{},
	}
}

func (c *scenario) run(one Scenario) error {
	defer func() {
		for _, running := range c.started {
			running.cancel()
		}
		for _, client := range c.clients {
			go client.Close()
		}
	}()
	for number, text := range one.Steps {
		var step Step
		err := step.read(text)
		if err == nil {
			err = c.step(step)
		}
		if err != nil {
			return fmt.Errorf("step %d %s: %w", number, text, err)
		}
	}
	return nil
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func (c *scenario) name(step Step) string {
	if step.Raw {
		return step.Lock
	}
	return c.prefix + step.Lock
}

// client is the client of a step; the runner's own, without a name, goes straight to the server.
func (c *scenario) client(step Step) (*leasehold.Client, error) {
	if client, made := c.clients[step.Client]; made {
		return client, nil
	}
	options := step.Options
	url, timeout := c.bench.Proxy, int64(1000)
	if c.network == Straight || options.Direct || step.Client == "" {
		url, timeout = c.bench.Server, 5000
	}
	if options.URL != "" {
		url = options.URL
	}
	if options.RequestTimeout != 0 {
		timeout = options.RequestTimeout
	}
	all := []leasehold.ConnectOption{leasehold.URL(url), leasehold.RequestTimeout(millis(timeout))}
	if options.WaitPerCall != 0 {
		all = append(all, leasehold.WaitPerCall(millis(options.WaitPerCall)))
	}
	if options.Token != "" {
		all = append(all, leasehold.Token(options.Token))
	}
	if options.Owner != "" {
		all = append(all, leasehold.Owner(options.Owner))
	}
	client, err := leasehold.Connect(all...)
	if err == nil {
		c.clients[step.Client] = client
	}
	return client, err
}

// take is a method that takes a lock.
type take func(context.Context) (*leasehold.Lock, error)

// acquire makes the acquire that a step asks for.
func (c *scenario) acquire(ctx context.Context, step Step, try bool) (*leasehold.Lock, error) {
	take, err := c.face(step, try)
	if err != nil {
		return nil, err
	}
	return take(ctx)
}

// face chooses how to take the lock of a step.
func (c *scenario) face(step Step, try bool) (take, error) {
	client, err := c.client(step)
	if err != nil {
		return nil, err
	}
	opts := []leasehold.Option{leasehold.TTL(10 * time.Second)}
	if step.TTL != nil {
		opts[0] = leasehold.TTL(millis(*step.TTL))
	}
	if step.Owner != "" {
		opts = append(opts, leasehold.Owner(step.Owner))
	}
	if step.Metadata != "" {
		opts = append(opts, leasehold.Metadata(step.Metadata))
	}
	if step.MaxHold != nil {
		opts = append(opts, leasehold.MaxHold(millis(*step.MaxHold)))
	}
	if step.Wait != nil {
		opts = append(opts, leasehold.Wait(millis(*step.Wait)))
	}
	name := c.name(step)
	var lock, once take
	switch step.Kind {
	case "", "mutex":
		face := client.Mutex(name, opts...)
		lock, once = face.Lock, face.TryLock
	case "write":
		face := client.RWMutex(name, opts...)
		lock, once = face.Lock, face.TryLock
	case "read":
		face := client.RWMutex(name, opts...)
		lock, once = face.RLock, face.TryRLock
	case "semaphore":
		face := client.Semaphore(name, step.Limit, opts...)
		lock, once = face.Acquire, face.TryAcquire
	default:
		return nil, errors.New("no such kind: " + step.Kind)
	}
	if try {
		return once, nil
	}
	return lock, nil
}

// seen is the word for the end of an acquire.
func seen(err error) string {
	switch {
	case err == nil:
		return "held"
	case errors.Is(err, leasehold.ErrHeld):
		return "busy"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return string(leasehold.KindOf(err))
}

// suits says whether a word is what is expected, or one of several such.
func suits(word string, expected json.RawMessage) bool {
	var one string
	var any []string
	if json.Unmarshal(expected, &one) == nil {
		return word == one
	}
	_ = json.Unmarshal(expected, &any)
	for _, one := range any {
		if word == one {
			return true
		}
	}
	return false
}

func demand(word string, expected json.RawMessage, err error) error {
	if suits(word, expected) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("saw %s, expected %s: %w", word, expected, err)
	}
	return fmt.Errorf("saw %s, expected %s", word, expected)
}

func isFault(err error) bool {
	switch leasehold.KindOf(err) {
	case leasehold.KindUnavailable, leasehold.KindNetworkTimeout, leasehold.KindOverloaded:
		return true
	}
	return false
}

// judge compares what an acquire brought with what was expected.
func (c *scenario) judge(step Step, lock *leasehold.Lock, err error) error {
	if bad := demand(seen(err), step.Expect, err); bad != nil {
		return bad
	}
	for _, hidden := range step.Hides {
		client := c.clients[step.Client]
		printed := fmt.Sprintf("%v %+v %#v %v %+v %#v %v %+v %#v", err, err, err, client, client, client, lock, lock, lock)
		if strings.Contains(printed, hidden) {
			return fmt.Errorf("it shows %s: %s", hidden, printed)
		}
	}
	if err == nil && step.As != "" {
		c.locks[step.As] = lock
	}
	return nil
}

// again makes a call, again and again in bad weather.
func (c *scenario) again(call func() error) error {
	end := time.Now().Add(storm)
	for {
		err := call()
		if err == nil || c.network != Weather || !isFault(err) || time.Now().After(end) {
			return err
		}
		time.Sleep(pause)
	}
}

func (c *scenario) try(ctx context.Context, step Step) error {
	end := time.Now().Add(storm)
	for {
		lock, err := c.acquire(ctx, step, true)
		// What a failed try got may still be on its way back.
		bad := isFault(err) && !suits(seen(err), step.Expect) || seen(err) == "busy" && suits("held", step.Expect)
		if c.network == Weather && bad && time.Now().Before(end) {
			time.Sleep(pause)
			continue
		}
		return c.judge(step, lock, err)
	}
}

// until looks at a lock until something is so.
func (c *scenario) until(ctx context.Context, name string, isSo func(leasehold.LockInfo) bool) error {
	client, err := c.client(Step{})
	if err != nil {
		return err
	}
	for {
		info, err := client.Show(ctx, name)
		if err == nil && isSo(info) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("it does not come: %+v, %v", info, err)
		}
		time.Sleep(pause)
	}
}

func (c *scenario) step(step Step) error {
	limit := within
	if step.Within != 0 {
		limit = millis(step.Within)
	}
	if step.Do == "try" {
		limit += storm
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch step.Do {
	case "client":
		_, err := c.client(step)
		return err
	case "try":
		return c.try(ctx, step)
	case "lock":
		lock, err := c.acquire(ctx, step, false)
		return c.judge(step, lock, err)
	case "start":
		take, err := c.face(step, false)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		running := &started{cancel: cancel, done: make(chan struct{})}
		c.started[step.As] = running
		go func() {
			defer close(running.done)
			running.lock, running.err = take(ctx)
		}()
		return nil
	case "join":
		running, there := c.started[step.As]
		if !there {
			return errors.New("nothing was started")
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			return errors.New("it takes too long")
		}
		return c.judge(step, running.lock, running.err)
	case "pending":
		time.Sleep(millis(step.Ms))
		select {
		case <-c.started[step.As].done:
			return fmt.Errorf("it has ended: %v", c.started[step.As].err)
		default:
			return nil
		}
	case "cancel":
		c.started[step.As].cancel()
		return nil
	case "queued":
		return c.until(ctx, c.name(step), func(info leasehold.LockInfo) bool { return info.QueueLength == step.Count })
	case "free":
		return c.until(ctx, c.name(step), func(info leasehold.LockInfo) bool { return info.HolderCount == 0 })
	case "show", "list", "revoke", "post":
		return c.call(ctx, step)
	case "sleep":
		time.Sleep(millis(step.Ms))
		return nil
	case "bench":
		value, err := c.bench.Do(step.Line)
		if strings.HasPrefix(step.Line, "hold ") {
			c.caught = value
		}
		return err
	case "caught":
		value, err := c.bench.Do(fmt.Sprintf("caught %s %d", c.caught, limit.Milliseconds()))
		if err == nil && value != "true" {
			err = errors.New("the request does not come")
		}
		return err
	case "deliver":
		_, err := c.bench.Do("deliver " + c.caught)
		return err
	case "close":
		client := c.clients[step.Client]
		delete(c.clients, step.Client)
		return client.Close()
	}
	return c.look(ctx, step)
}

// call makes the steps that ask the server something.
func (c *scenario) call(ctx context.Context, step Step) error {
	client, err := c.client(step)
	if err != nil {
		return err
	}
	switch step.Do {
	case "show":
		var info leasehold.LockInfo
		if err := c.again(func() error { info, err = client.Show(ctx, c.name(step)); return err }); err != nil {
			return err
		}
		return c.compare(step, info)
	case "list":
		limit := 100
		if step.Limit != 0 {
			limit = step.Limit
		}
		names := []string{}
		for cursor := ""; ; {
			var page []leasehold.LockInfo
			var next string
			call := func() error {
				page, next, err = client.ListPage(ctx, c.prefix+step.Prefix, limit, cursor)
				return err
			}
			if err := c.again(call); err != nil {
				return err
			}
			for _, one := range page {
				names = append(names, strings.TrimPrefix(one.Name, c.prefix))
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		if !reflect.DeepEqual(names, step.Names) {
			return fmt.Errorf("saw %q", names)
		}
	case "revoke":
		what := leasehold.RevokeOptions{Now: step.Now}
		if step.Only != "" {
			what.Only = c.locks[step.Only].Fence()
		}
		var count, want int
		call := func() error { count, err = client.Revoke(ctx, c.name(step), what); return err }
		if err := c.again(call); err != nil {
			return err
		}
		_ = json.Unmarshal(step.Expect, &want)
		if count != want && c.network != Weather {
			return fmt.Errorf("revoked %d", count)
		}
	case "post":
		path := step.Path
		if i, j := strings.IndexByte(path, '{'), strings.IndexByte(path, '}'); i >= 0 && j > i {
			path = path[:i] + protocol.Segment(c.prefix+path[i+1:j]) + path[j+1:]
		}
		response, err := http.Post(c.bench.Server+path, "application/json", bytes.NewReader(step.Body))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		var want int
		_ = json.Unmarshal(step.Expect, &want)
		if response.StatusCode != want {
			return fmt.Errorf("saw status %d", response.StatusCode)
		}
	}
	return nil
}

// compare compares what the server shows of a lock with what was expected.
func (c *scenario) compare(step Step, info leasehold.LockInfo) error {
	var owners []string
	for _, one := range info.Holders {
		owners = append(owners, one.Owner)
	}
	bad := step.Holders != nil && info.HolderCount != *step.Holders ||
		step.Waiters != nil && info.QueueLength != *step.Waiters ||
		step.Owners != nil && !reflect.DeepEqual(owners, step.Owners) ||
		step.Metadata != "" && (len(info.Holders) == 0 || info.Holders[0].Metadata != step.Metadata) ||
		step.FenceOf != "" && (len(info.Holders) == 0 || info.Holders[0].Fence != c.locks[step.FenceOf].Fence())
	if bad {
		return fmt.Errorf("saw %+v", info)
	}
	return nil
}

// look makes the steps that look at locks which were acquired, without a call.
func (c *scenario) look(ctx context.Context, step Step) error {
	fences := func(names []string) (all []leasehold.Fence) {
		for _, name := range names {
			all = append(all, c.locks[name].Fence())
		}
		return all
	}
	switch step.Do {
	case "fences":
		all := fences(step.Rise)
		for i := 1; i < len(all); i++ {
			if all[i-1] >= all[i] {
				return fmt.Errorf("saw %v", all)
			}
		}
		return nil
	case "same":
		all := fences(step.Of)
		for i := 1; i < len(all); i++ {
			if all[i-1] != all[i] {
				return fmt.Errorf("saw %v", all)
			}
		}
		return nil
	}
	lock, there := c.locks[step.As]
	if !there {
		return errors.New("no such lock")
	}
	reason := func() error {
		var lost *leasehold.LostError
		if step.Reason == nil {
			return nil
		}
		if !errors.As(lock.Err(), &lost) {
			return fmt.Errorf("there is no reason, but %v", lock.Err())
		}
		return demand(string(lost.Reason), step.Reason, lost)
	}
	switch step.Do {
	case "release":
		err := lock.Unlock(ctx)
		word := string(leasehold.KindOf(err))
		if err == nil {
			word = "released"
		} else if errors.Is(err, leasehold.ErrGone) {
			word = "gone"
		}
		return demand(word, step.Expect, err)
	case "check":
		err, word := lock.Check(), "held"
		if err != nil {
			word = "lost"
		}
		if bad := demand(word, step.Expect, err); bad != nil || word == "held" {
			return bad
		}
		return reason()
	case "lost":
		began := time.Now()
		select {
		case <-lock.Lost():
		case <-ctx.Done():
			return fmt.Errorf("it is not lost in time: %v", lock)
		}
		if took := time.Since(began); took < millis(step.After) && c.network != Weather {
			return fmt.Errorf("it was lost after only %v", took)
		}
		if lock.Context().Err() == nil {
			return errors.New("its context was not cancelled")
		}
		return reason()
	case "stays":
		for end := time.Now().Add(millis(step.Ms)); ; time.Sleep(pause) {
			if err := lock.Check(); err != nil {
				return err
			}
			if time.Now().After(end) {
				return nil
			}
		}
	case "left":
		left := lock.ValidFor()
		if c.network != Weather && (left < millis(step.Least) || left > millis(step.Most)) {
			return fmt.Errorf("saw %v", left)
		}
		return nil
	}
	return errors.New("no such step: " + step.Do)
}
