// Package wire holds the bodies of requests to a lock server and of its answers, and its error codes.
//
// These types are the only place where the client names a field; `bin/fields` prints them, so that a test can compare
// them with the server's own description.
package wire

import "encoding/json"

// Acquire is the body of POST /v1/locks/{name}/acquire.
type Acquire struct {
	OwnerID  string `json:"owner_id"`
	TTLMs    int64  `json:"ttl_ms"`
	LeaseID  string `json:"lease_id"`
	Mode     string `json:"mode,omitempty"`
	Limit    uint32 `json:"limit,omitempty"`
	WaitMs   int64  `json:"wait_ms,omitempty"`
	Queue    int64  `json:"queue,omitempty"`
	Metadata string `json:"metadata,omitempty"`
	Repeat   bool   `json:"repeat,omitempty"`
}

// Renew is the body of POST /v1/locks/{name}/renew, and one item of POST /v1/renew.
type Renew struct {
	LockName     string `json:"lock_name,omitempty"`
	LeaseID      string `json:"lease_id"`
	ExtendByMs   int64  `json:"extend_by_ms"`
	OwnerID      string `json:"owner_id,omitempty"`
	FencingToken uint64 `json:"fencing_token,omitempty"`
}

// RenewMany is the body of POST /v1/renew.
type RenewMany struct {
	Leases []Renew `json:"leases"`
}

// Release is the body of POST /v1/locks/{name}/release.
type Release struct {
	LeaseID      string `json:"lease_id"`
	OwnerID      string `json:"owner_id,omitempty"`
	FencingToken uint64 `json:"fencing_token,omitempty"`
	Unanswered   int64  `json:"unanswered,omitempty"`
}

// Revoke is the body of POST /v1/locks/{name}/revoke.
type Revoke struct {
	Now          bool   `json:"now"`
	FencingToken uint64 `json:"fencing_token,omitempty"`
}

// Acquired is the answer 200 to an acquire.
type Acquired struct {
	Acquired      bool    `json:"acquired"`
	OwnerID       string  `json:"owner_id"`
	LeaseID       string  `json:"lease_id"`
	FencingToken  *uint64 `json:"fencing_token"`
	ExpiresInMs   *int64  `json:"expires_in_ms"`
	WaitedMs      int64   `json:"waited_ms"`
	LeaseExpiryMs int64   `json:"lease_expiry_ms"`
}

// Busy is the answer 409 to an acquire.
type Busy struct {
	Reason             string `json:"reason"`
	CurrentOwnerID     string `json:"current_owner_id"`
	CurrentExpiryMs    int64  `json:"current_expiry_ms"`
	RecommendedRetryMs int64  `json:"recommended_retry_ms"`
}

// RenewedMany is the answer 200 to POST /v1/renew.
type RenewedMany struct {
	Results []json.RawMessage `json:"results"`
}

// RenewedEach is one result of a batch, and the answer to POST /v1/locks/{name}/renew, which has no Status.
type RenewedEach struct {
	Status        int    `json:"status"`
	Renewed       bool   `json:"renewed"`
	ExpiresInMs   *int64 `json:"expires_in_ms"`
	LeaseExpiryMs int64  `json:"lease_expiry_ms"`
	Gone          string `json:"gone"`
	Reason        string `json:"reason"`
}

// Released is the answer 200 to a release.
type Released struct {
	Released *bool  `json:"released"`
	Reason   string `json:"reason"`
	Gone     string `json:"gone"`
}

// Revoked is the answer 200 to a revocation.
type Revoked struct {
	Revoked *int `json:"revoked"`
}

// Lock describes a lock with its holders and waiters.
type Lock struct {
	LockName         string   `json:"lock_name"`
	Held             bool     `json:"held"`
	LastFencingToken uint64   `json:"last_fencing_token"`
	Version          uint64   `json:"version"`
	Holders          []Holder `json:"holders"`
	HolderCount      int      `json:"holder_count"`
	Waiters          []Waiter `json:"waiters"`
	QueueLength      int      `json:"queue_length"`
}

// Holder is one live lease.
type Holder struct {
	LeaseDigest  string `json:"lease_digest"`
	OwnerID      string `json:"owner_id"`
	Mode         string `json:"mode"`
	Limit        uint32 `json:"limit"`
	FencingToken uint64 `json:"fencing_token"`
	ExpiresInMs  int64  `json:"expires_in_ms"`
	AcquiredAtMs int64  `json:"acquired_at_ms"`
	Renewals     uint64 `json:"renewals"`
	Metadata     string `json:"metadata"`
	Revoked      bool   `json:"revoked"`
}

// Waiter is one waiter.
type Waiter struct {
	LeaseDigest string `json:"lease_digest"`
	OwnerID     string `json:"owner_id"`
	Mode        string `json:"mode"`
	Limit       uint32 `json:"limit"`
	WaitedMs    int64  `json:"waited_ms"`
}

// Listed is one page of locks.
type Listed struct {
	Locks      []Lock `json:"locks"`
	NextCursor string `json:"next_cursor"`
}

// Problem has the fields of every error.
type Problem struct {
	Error string `json:"error"`
	Code  string `json:"code"`
}

// HolderChanged is the code when a revocation names one lease and that lease is gone.
const HolderChanged = "HOLDER_CHANGED"

// Superseded is the code of 410 for an id that was given up or taken over.
const Superseded = "SUPERSEDED"

// The reasons of a 409 that are an answer and not a fault.
const (
	Held        = "HELD"
	WaitTimeout = "WAIT_TIMEOUT"
	BusyRetry   = "BUSY_RETRY"
)

// Kinds maps each error code of the server to the kind of error that it stands for.
var Kinds = map[string]string{
	"INVALID_ARGUMENT": "invalid_argument",
	"UNAVAILABLE":      "unavailable",
	"DRAINING":         "unavailable",
	"ABORTED":          "unavailable",
	BusyRetry:          "overloaded",
	"NETWORK_TIMEOUT":  "network_timeout",
	"AUTH_FAILED":      "auth_failed",
	"RATE_LIMITED":     "rate_limited",
	"TIMEOUT":          "timeout",
	"LOST":             "lost",
	"MISMATCH":         "mismatch",
	"DEADLOCK":         "deadlock",
	"UNSUPPORTED":      "unsupported",
	"INTERNAL":         "internal",
}

// The routes.
const (
	Locks   = "/v1/locks"
	Batch   = "/v1/renew"
	Healthz = "/healthz"
)

// Paths lists the routes that the client calls.
var Paths = []string{
	"POST " + Locks + "/{name}/acquire",
	"POST " + Locks + "/{name}/renew",
	"POST " + Locks + "/{name}/release",
	"POST " + Locks + "/{name}/revoke",
	"GET " + Locks + "/{name}",
	"GET " + Locks,
	"POST " + Batch,
	"GET " + Healthz,
}
