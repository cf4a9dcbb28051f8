package leasehold

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"example.invalid/leasehold/sdk/go/internal/nfc"
	"example.invalid/leasehold/sdk/go/internal/protocol"
	"example.invalid/leasehold/sdk/go/internal/wire"
)

// LockInfo describes a lock at one moment. It holds no lease id.
type LockInfo struct {
	// Name is the name of the lock.
	Name string
	// Held says whether any client holds it.
	Held bool
	// Holders are the leases, oldest first, at most a hundred; HolderCount is how many there are.
	Holders     []Holder
	HolderCount int
	// Waiters are the waiters in their order, at most a hundred; QueueLength is how many there are.
	Waiters     []Waiter
	QueueLength int
	// LastFence is the fence of the latest grant.
	LastFence Fence
	// Version counts every change of the name.
	Version uint64
}

// Holder describes a lease without its secrets.
type Holder struct {
	// Owner is the owner label.
	Owner string
	// Mode says how the lease shares the name; Limit is the number of permits.
	Mode  Mode
	Limit int
	// Fence is its fence.
	Fence Fence
	// ExpiresIn is how long it lasts unless it is renewed.
	ExpiresIn time.Duration
	// AcquiredAt is when it was granted, by the store's clock: for display.
	AcquiredAt time.Time
	// Renewals counts its renewals.
	Renewals uint64
	// Metadata is the text that its holder attached.
	Metadata string
	// Revoked says whether the store refuses to renew it.
	Revoked bool
	// Digest stands for the lease id without revealing it.
	Digest string
}

// Waiter describes a client that waits.
type Waiter struct {
	// Owner is the owner label.
	Owner string
	// Mode is what it waits for; Limit is the number of permits.
	Mode  Mode
	Limit int
	// Waited is how long it has waited.
	Waited time.Duration
	// Digest stands for the id that its lease will have, without revealing it.
	Digest string
}

// pageSize is how many locks a client asks for in one call.
const pageSize = 1000

func (c *Client) ask(ctx context.Context, what request, into any) error {
	if c.defect != nil {
		return c.defect
	}
	answer, fault := c.transport.call(ctx, what)
	if fault == nil && answer.status != http.StatusOK {
		fault = answer.fault()
	}
	if fault == nil {
		fault = answer.read(into)
	}
	if fault != nil {
		return fault
	}
	return nil
}

// Show describes one lock, also one that nobody uses.
func (c *Client) Show(ctx context.Context, name string) (LockInfo, error) {
	name, err := normalName(name)
	if err != nil {
		return LockInfo{}, err
	}
	var body wire.Lock
	if err := c.ask(ctx, get(wire.Locks+"/"+protocol.Segment(name), c.defaults.requestTimeout), &body); err != nil {
		return LockInfo{}, err
	}
	return lockInfo(body), nil
}

// List describes all locks in use whose names begin with a prefix, in the order of their names. An empty prefix means
// all locks.
func (c *Client) List(ctx context.Context, prefix string) ([]LockInfo, error) {
	var all []LockInfo
	for cursor := ""; ; {
		page, next, err := c.ListPage(ctx, prefix, pageSize, cursor)
		if err != nil {
			return nil, err
		}
		if all = append(all, page...); next == "" {
			return all, nil
		}
		cursor = next
	}
}

// ListPage describes at most limit locks, from where the cursor of the page before says; the first page has an empty
// one. It returns the cursor of the next page, empty at the end. A page may be empty before the end.
func (c *Client) ListPage(
	ctx context.Context, prefix string, limit int, cursor string,
) (locks []LockInfo, next string, err error) {
	path := wire.Locks + "?limit=" + strconv.Itoa(limit) + "&prefix=" + protocol.Segment(nfc.String(prefix))
	if cursor != "" {
		path += "&cursor=" + protocol.Segment(cursor)
	}
	var page wire.Listed
	if err := c.ask(ctx, get(path, c.defaults.requestTimeout), &page); err != nil {
		return nil, "", err
	}
	for _, lock := range page.Locks {
		locks = append(locks, lockInfo(lock))
	}
	return locks, page.NextCursor, nil
}

// RevokeOptions say what to revoke.
type RevokeOptions struct {
	// Now frees the name at once and relies on fences to stop the old holder. Without it, the store refuses renewals, and
	// the name passes on when the lease expires.
	Now bool
	// Only revokes only the lease with this fence; zero means every lease of the name.
	Only Fence
}

// Revoke takes a lock from its holders. It returns how many leases it revoked; zero if the lease of Only is gone. With
// tokens it needs the verb `admin`.
func (c *Client) Revoke(ctx context.Context, name string, what RevokeOptions) (int, error) {
	name, err := normalName(name)
	if err != nil {
		return 0, err
	}
	if c.defect != nil {
		return 0, c.defect
	}
	body := wire.Revoke{Now: what.Now, FencingToken: uint64(what.Only)}
	path := wire.Locks + "/" + protocol.Segment(name) + "/revoke"
	answer, fault := c.transport.call(ctx, post(path, body, c.defaults.requestTimeout))
	if fault != nil {
		return 0, fault
	}
	if answer.status != http.StatusOK {
		var said wire.Problem
		if json.Unmarshal(answer.body, &said) == nil && said.Code == wire.HolderChanged {
			return 0, nil
		}
		return 0, answer.fault()
	}
	var revoked wire.Revoked
	if fault := answer.read(&revoked); fault != nil {
		return 0, fault
	}
	if revoked.Revoked == nil {
		return 0, answer.odd("the server did not say how many leases it revoked")
	}
	return *revoked.Revoked, nil
}

func lockInfo(lock wire.Lock) LockInfo {
	info := LockInfo{
		Name: lock.LockName, Held: lock.Held, LastFence: Fence(lock.LastFencingToken), Version: lock.Version,
		HolderCount: lock.HolderCount, QueueLength: lock.QueueLength,
	}
	for _, one := range lock.Holders {
		info.Holders = append(info.Holders, Holder{
			Owner: one.OwnerID, Mode: Mode(one.Mode), Limit: int(one.Limit), Fence: Fence(one.FencingToken),
			ExpiresIn: protocol.FromMs(one.ExpiresInMs), AcquiredAt: time.UnixMilli(one.AcquiredAtMs),
			Renewals: one.Renewals, Metadata: one.Metadata, Revoked: one.Revoked, Digest: one.LeaseDigest,
		})
	}
	for _, one := range lock.Waiters {
		info.Waiters = append(info.Waiters, Waiter{
			Owner: one.OwnerID, Mode: Mode(one.Mode), Limit: int(one.Limit), Waited: protocol.FromMs(one.WaitedMs),
			Digest: one.LeaseDigest,
		})
	}
	return info
}
