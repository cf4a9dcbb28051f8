// Command bench measures the Go client beside bare HTTP calls to the same server, in the same run: uncontended pairs of
// lock and unlock a second, and the hand-over of a lock between two processes.
//
//	LEASEHOLD_URL=http://127.0.0.1:7420 go run ./bench
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"sort"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/protocol"
)

const partner = "LEASEHOLD_BENCH_PARTNER"

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	secs := flag.Float64("secs", 2, "how long each of the rounds takes, in seconds")
	rounds := flag.Int("rounds", 3, "how many rounds of each kind")
	handovers := flag.Int("handovers", 200, "how many hand-overs")
	flag.Parse()
	locks, err := leasehold.Connect()
	if err != nil {
		log.Fatal(err)
	}
	if name := os.Getenv(partner); name != "" {
		if err := takeTurns(locks, name, *handovers); err != nil {
			log.Fatal(err)
		}
		return
	}
	defer locks.Close()
	length := time.Duration(*secs * float64(time.Second))
	var ours, bare []float64
	var trips []time.Duration
	// In turn, so that a change of the machine meets both.
	for round := 0; round < *rounds; round++ {
		ours = append(ours, pairs(length, func(int) error { return pair(locks) }))
		bare = append(bare, pairs(length, func(number int) error { return barePair(number, &trips) }))
	}
	trip := median(trips)
	fmt.Printf("pairs a second      %.0f, bare %.0f: %.2f\n", middle(ours), middle(bare), middle(ours)/middle(bare))
	fmt.Printf("bare round trip     median %v\n", trip)
	all, err := handOver(*handovers)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("hand-over           median %v of %d: %.2f bare round trips\n", median(all), len(all),
		float64(median(all))/float64(trip))
}

func median(all []time.Duration) time.Duration {
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all[len(all)/2]
}

func middle(all []float64) float64 {
	sort.Float64s(all)
	return all[len(all)/2]
}

// pairs says how often a second something could be done.
func pairs(length time.Duration, do func(number int) error) float64 {
	count, began := 0, time.Now()
	for ; time.Since(began) < length; count++ {
		if err := do(count); err != nil {
			log.Fatal(err)
		}
	}
	return float64(count) / time.Since(began).Seconds()
}

const uncontended = "bench/uncontended"

func pair(locks *leasehold.Client) error {
	ctx := context.Background()
	lock, err := locks.Mutex(uncontended).Lock(ctx)
	if err != nil {
		return err
	}
	return lock.Unlock(ctx)
}

// barePair makes the same two calls with the standard client alone.
func barePair(number int, trips *[]time.Duration) error {
	id, err := protocol.LeaseID()
	if err != nil {
		return err
	}
	call := func(verb string, body map[string]any) error {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		began := time.Now()
		url := os.Getenv("LEASEHOLD_URL") + "/v1/locks/" + protocol.Segment(uncontended) + "/" + verb
		response, err := http.Post(url, "application/json", bytes.NewReader(text))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err == nil {
			*trips = append(*trips, time.Since(began))
			var read map[string]any
			err = json.Unmarshal(answer, &read)
		}
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: status %d", verb, response.StatusCode)
		}
		return err
	}
	if err := call("acquire", map[string]any{"owner_id": "bench", "ttl_ms": 30000, "lease_id": id}); err != nil {
		return err
	}
	return call("release", map[string]any{"lease_id": id})
}

// turn is what a partner reports of one turn: when it got the lock, and when it gave it away.
type turn struct {
	Fence         leasehold.Fence
	Got, Released int64
}

// takeTurns takes a lock again and again, and keeps it until the other process waits for it.
func takeTurns(locks *leasehold.Client, name string, count int) error {
	ctx := context.Background()
	for ; count > 0; count-- {
		lock, err := locks.Mutex(name).Lock(ctx)
		if err != nil {
			return err
		}
		one := turn{Fence: lock.Fence(), Got: int64(clock.Now())}
		time.Sleep(5 * time.Millisecond)
		one.Released = int64(clock.Now())
		if err := lock.Unlock(ctx); err != nil {
			return err
		}
		text, err := json.Marshal(one)
		if err != nil {
			return err
		}
		fmt.Println(string(text))
	}
	return nil
}

// handOver measures, for two processes that take turns, the time from before the unlock in one until the lock is held
// in the other.
func handOver(count int) ([]time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var outputs []io.Reader
	var processes []*exec.Cmd
	for i := 0; i < 2; i++ {
		process := exec.Command(self, "-handovers", fmt.Sprint(count/2))
		process.Env = append(os.Environ(), partner+"=bench/hand-over")
		process.Stderr = os.Stderr
		output, err := process.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := process.Start(); err != nil {
			return nil, err
		}
		outputs, processes = append(outputs, output), append(processes, process)
	}
	var turns []turn
	owner := map[leasehold.Fence]int{}
	for i, output := range outputs {
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			var one turn
			if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
				return nil, err
			}
			turns, owner[one.Fence] = append(turns, one), i
		}
		if err := processes[i].Wait(); err != nil {
			return nil, err
		}
	}
	sort.Slice(turns, func(i, j int) bool { return turns[i].Fence < turns[j].Fence })
	var all []time.Duration
	for i := 1; i < len(turns); i++ {
		if owner[turns[i].Fence] != owner[turns[i-1].Fence] {
			all = append(all, time.Duration(turns[i].Got-turns[i-1].Released))
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the two processes never took turns")
	}
	return all, nil
}
