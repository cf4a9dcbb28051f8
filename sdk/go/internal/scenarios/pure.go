package scenarios

import (
	"encoding/hex"
	"fmt"
	"math"
	"regexp"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
	"example.invalid/leasehold/sdk/go/internal/history"
	"example.invalid/leasehold/sdk/go/internal/protocol"
)

// Pure runs the cases that need no server.
func Pure(vectors Vectors, report func(id string, err error)) {
	ms := func(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
	check := func(group string, number int, got, want any) {
		var err error
		if got != want {
			err = fmt.Errorf("got %v, expected %v", got, want)
		}
		report(fmt.Sprintf("%s-%d", group, number), err)
	}
	pure := vectors.Pure
	for i, one := range pure.Segments {
		name, err := protocol.Name(one.Name)
		if err != nil {
			name = err.Error()
		}
		check("segments", i, protocol.Segment(name), one.Segment)
	}
	for i, one := range pure.Refused {
		_, err := protocol.Name(one)
		check("names_refused", i, err != nil, true)
	}
	id, err := protocol.LeaseID()
	check("lease_id", 0, err == nil && regexp.MustCompile(pure.LeaseID.Form).MatchString(id), true)
	for i, one := range pure.Deadlines {
		span := protocol.Span(ms(one.Waited), ms(one.Expires), ms(one.TTL))
		check("deadlines", i, one.Sent+int64(span), one.Deadline)
	}
	for i, one := range pure.FirstRenewals {
		check("first_renewals", i, int64(protocol.FirstRenewal(ms(one.TTL), ms(one.Expires))), one.After)
	}
	for i, one := range pure.RenewalTimeouts {
		check("renewal_timeouts", i, int64(protocol.RenewalTimeout(ms(one.TTL))), one.Timeout)
	}
	for i, one := range pure.RenewalRetries {
		check("renewal_retries", i, int64(protocol.RenewalRetry(ms(one.TTL))), one.After)
	}
	for i, one := range pure.Pauses {
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		for n := 0; n < 1000; n++ {
			pause := protocol.Pause(one.Faults)
			least = protocol.Shortest(least, pause)
			if pause > most {
				most = pause
			}
		}
		inside := ms(one.Least) <= least && most <= ms(one.Most)
		// A thousand draws that come near neither end are not spread as they should be.
		spread := least < ms(one.Least)+ms(one.Most-one.Least)/4 && most > ms(one.Most)-ms(one.Most-one.Least)/4
		check("pauses", i, inside && spread, true)
	}
	for i, one := range pure.Waits {
		left := time.Duration(math.MaxInt64)
		if one.Left != nil {
			left = ms(*one.Left)
		}
		check("waits", i, protocol.CeilMs(protocol.WaitOfCall(left, ms(one.PerCall))), one.Wait)
	}
	for i, one := range pure.Errors {
		check("errors", i, protocol.Kind(one.Status, one.Code), one.Kind)
	}
	for i, one := range pure.Fences {
		check("fences", i, leasehold.Fence(one.Number).String(), one.Text)
	}
	for i, one := range pure.Hashes {
		check("hashes", i, history.Hash([]byte(one.LeaseID)), one.Hash)
	}
	for i, one := range pure.Records {
		record := history.Record{
			Kind: history.KindOf(one.Kind), Mode: history.ModeOf(one.Mode), Place: one.Place, Task: one.Task,
			Worker: one.Worker, Claim: one.Claim, At: one.At, Lease: one.Lease, Fence: one.Fence,
			Deadline: one.Deadline, Value: one.Value,
		}
		bytes := record.Bytes()
		check("records", i, hex.EncodeToString(bytes[:]), one.Hex)
	}
}
