// Package scenarios runs sdk/vectors.json, the checks that the clients of all languages share.
package scenarios

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"

	"example.invalid/leasehold/sdk/go/internal/bench"
)

// Vectors is the file.
type Vectors struct {
	Pure struct {
		Segments []struct{ Name, Segment string }
		Refused  []string `json:"names_refused"`
		LeaseID  struct {
			Form string
		} `json:"lease_id"`
		Deadlines []struct {
			Sent     int64 `json:"sent_ns"`
			Waited   int64 `json:"waited_ms"`
			Expires  int64 `json:"expires_in_ms"`
			TTL      int64 `json:"ttl_ms"`
			Deadline int64 `json:"deadline_ns"`
		}
		FirstRenewals []struct {
			TTL     int64 `json:"ttl_ms"`
			Expires int64 `json:"expires_in_ms"`
			After   int64 `json:"after_ns"`
		} `json:"first_renewals"`
		RenewalTimeouts []struct {
			TTL     int64 `json:"ttl_ms"`
			Timeout int64 `json:"timeout_ns"`
		} `json:"renewal_timeouts"`
		RenewalRetries []struct {
			TTL   int64 `json:"ttl_ms"`
			After int64 `json:"after_ns"`
		} `json:"renewal_retries"`
		Pauses []struct {
			Faults int
			Least  int64 `json:"least_ms"`
			Most   int64 `json:"most_ms"`
		}
		Waits []struct {
			Left    *int64 `json:"left_ms"`
			PerCall int64  `json:"per_call_ms"`
			Wait    int64  `json:"wait_ms"`
		}
		Errors []struct {
			Status int
			Code   string
			Kind   string
		}
		Fences []struct {
			Number uint64
			Text   string
		}
		Hashes []struct {
			LeaseID string `json:"lease_id"`
			Hash    uint64 `json:"fnv1a,string"`
		}
		Records []Record
	}
	Scenarios []Scenario
}

// Record is one example of a worker's history.
type Record struct {
	Kind, Mode  string
	Place, Task uint16
	Worker      uint32
	Claim       uint64 `json:",string"`
	At          uint64 `json:",string"`
	Lease       uint64 `json:",string"`
	Fence       uint64 `json:",string"`
	Deadline    uint64 `json:",string"`
	Value       uint64 `json:",string"`
	Hex         string
}

// Scenario is one case that needs a server.
type Scenario struct {
	ID      string
	Faults  bool
	Weather *bool
	Steps   []json.RawMessage
}

// Step is one step of a scenario.
type Step struct {
	Do       string
	Client   string
	Options  Options
	Lock     string
	Raw      bool
	As       string
	Kind     string
	Limit    int
	TTL      *int64
	Owner    string
	Metadata string
	MaxHold  *int64 `json:"max_hold"`
	Wait     *int64
	Within   int64
	Ms       int64
	Expect   json.RawMessage
	Reason   json.RawMessage
	Hides    []string
	After    int64
	Count    int
	Least    int64
	Most     int64
	Rise     []string
	Of       []string
	Holders  *int
	Waiters  *int
	Owners   []string
	FenceOf  string `json:"fence_of"`
	Prefix   string
	Names    []string
	Now      bool
	Only     string
	Path     string
	Body     json.RawMessage
	Line     string
}

// Options are those of the step `client`.
type Options struct {
	RequestTimeout int64 `json:"request_timeout"`
	WaitPerCall    int64 `json:"wait_per_call"`
	Token          string
	Owner          string
	URL            string
	Direct         bool
}

// Load reads the file that LEASEHOLD_SDK_VECTORS names, else the one of the repository. A field that this runner does
// not know is an error: it would check less than the file says.
func Load() (Vectors, error) {
	var vectors Vectors
	path := os.Getenv("LEASEHOLD_SDK_VECTORS")
	if path == "" {
		path = filepath.Join(bench.Root(), "sdk", "vectors.json")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return vectors, err
	}
	return vectors, json.Unmarshal(text, &vectors)
}

func (s *Step) read(text json.RawMessage) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(s)
}
