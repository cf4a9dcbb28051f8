// Package protocol holds the rules of docs/sdk-protocol.md that are pure arithmetic on names, times and codes. The
// vectors of all languages test it.
package protocol

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"example.invalid/leasehold/sdk/go/internal/nfc"
	"example.invalid/leasehold/sdk/go/internal/wire"
)

// The limits of texts, in bytes.
const (
	MaxName     = 512
	MaxOwner    = 256
	MaxMetadata = 4096
)

// Name returns the name in NFC, in which two spellings of one name are the same lock. The text of the error never shows
// the name.
func Name(name string) (string, error) {
	if !utf8.ValidString(name) {
		return "", errors.New("the name must be UTF-8")
	}
	name = nfc.String(name)
	switch {
	case name == "":
		return "", errors.New("the name must not be empty")
	case len(name) > MaxName:
		return "", fmt.Errorf("the name has %d bytes after NFC normalisation; at most %d are allowed", len(name), MaxName)
	}
	return name, nil
}

const upperHex = "0123456789ABCDEF"

// Segment writes a text as one segment of a path. A dot is escaped, because `.` and `..` have a meaning of their own.
func Segment(text string) string {
	var path strings.Builder
	for i := 0; i < len(text); i++ {
		char := text[i]
		switch {
		case 'a' <= char && char <= 'z', 'A' <= char && char <= 'Z', '0' <= char && char <= '9',
			char == '-', char == '_', char == '~':
			path.WriteByte(char)
		default:
			path.WriteByte('%')
			path.WriteByte(upperHex[char>>4])
			path.WriteByte(upperHex[char&15])
		}
	}
	return path.String()
}

// LeaseID makes the id of one acquisition: 16 random bytes as 22 characters of base64url. It is a secret.
func LeaseID() (string, error) {
	var bytes [16]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(bytes[:]), nil
}

// rounding is subtracted from the time that a grant has left, together with one percent, for times that a store rounds
// up.
const rounding = 2 * time.Millisecond

// Span is how long the client may rely on a grant, counted from before the request was sent. The server measured left
// no earlier than waited after that. One percent and 2 ms are kept for clocks that run at different rates. The client
// never relies on more than the ttl it asked for, even if a clock that was set back reports more.
func Span(waited, left, ttl time.Duration) time.Duration {
	span := Shortest(left, ttl)
	if waited > math.MaxInt64-span {
		return math.MaxInt64
	}
	span += waited
	return span - span/100 - rounding
}

// FirstRenewal is how long after the grant to renew first. A repeated claim gets what is left of its lease, which must
// be renewed sooner.
func FirstRenewal(ttl, left time.Duration) time.Duration { return Shortest(ttl/3, left/2) }

// RenewalTimeout is short enough that several renewals fit between the first one and the deadline.
func RenewalTimeout(ttl time.Duration) time.Duration { return Shortest(ttl/6, 5*time.Second) }

// RenewalRetry is how long to wait before a failed renewal is repeated.
func RenewalRetry(ttl time.Duration) time.Duration { return Shortest(ttl/12, time.Second) }

// WaitOfCall is how long to ask the server to wait in one call.
func WaitOfCall(left, perCall time.Duration) time.Duration { return Shortest(left, perCall) }

const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

var (
	diceMu sync.Mutex
	dice   = mathrand.New(mathrand.NewSource(time.Now().UnixNano())) // spreads load; nothing secret is made from it
)

// Chance returns a random number from zero to below one.
func Chance() float64 {
	diceMu.Lock()
	defer diceMu.Unlock()
	return dice.Float64()
}

// Pause is how long to wait after this many faults in a row before: it doubles, and varies by half.
func Pause(faults int) time.Duration {
	pause := longestPause
	if faults < 6 {
		pause = Shortest(firstPause<<uint(faults), longestPause)
	}
	return time.Duration(float64(pause) * (0.5 + Chance()/2))
}

// Kind is the kind of error that an answer stands for: by the server's own code, or by the status if a proxy answered.
func Kind(status int, code string) string {
	kind, known := wire.Kinds[code]
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return wire.Kinds["AUTH_FAILED"]
	case status == http.StatusTooManyRequests:
		return wire.Kinds["RATE_LIMITED"]
	case known:
		return kind
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return wire.Kinds["UNSUPPORTED"]
	case 400 <= status && status < 500:
		return wire.Kinds["INVALID_ARGUMENT"]
	}
	return wire.Kinds["UNAVAILABLE"]
}

// Shortest returns the shorter of two times.
func Shortest(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

// CeilMs returns whole milliseconds, rounded up: for a time that the client asks for.
func CeilMs(d time.Duration) int64 {
	ms := d.Milliseconds()
	if time.Duration(ms)*time.Millisecond < d {
		ms++
	}
	return ms
}

// FromMs reads a time that the server gives. None is negative.
func FromMs(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	switch {
	case ms < 0:
		return 0
	case ms > most:
		ms = most
	}
	return time.Duration(ms) * time.Millisecond
}
