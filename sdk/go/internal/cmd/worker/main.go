// Command worker is a worker of `leasehold torture`: it takes, keeps and gives back locks with the Go client, and
// records what it does and sees. docs/sdk-protocol.md has the task and the records.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/history"
)

// task is the file that says what to do.
type task struct {
	URL      string
	Worker   uint32
	History  string
	Resource string
	Seed     int64
	Tasks    int
	TTL      int64 `json:"ttl_ms"`
	Patience int64 `json:"patience_ms"`
	Cancels  bool
	Lingers  bool
	Locks    []place
}

// place is one of the locks.
type place struct {
	Place uint16
	Name  string
	Kind  string
	Limit int
	Hot   bool
}

// worker is this process.
type worker struct {
	task     task
	ttl      time.Duration
	client   *leasehold.Client
	log      *history.Log
	claims   uint64
	finished chan struct{}
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("worker: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: worker TASK")
	}
	text, err := os.ReadFile(os.Args[1])
	w := &worker{finished: make(chan struct{})}
	if err == nil {
		err = json.Unmarshal(text, &w.task)
	}
	if err == nil {
		err = w.run()
	}
	if err != nil {
		log.Fatal(err)
	}
}

// listen ends the turns at the first line of input, and the process with the input.
func (w *worker) listen() {
	input := bufio.NewReader(os.Stdin)
	if _, err := input.ReadString('\n'); err != nil {
		os.Exit(0)
	}
	close(w.finished)
	_, _ = input.ReadString('\n')
	os.Exit(0)
}

func (w *worker) over() bool {
	select {
	case <-w.finished:
		return true
	default:
		return false
	}
}

func (w *worker) run() error {
	go w.listen()
	w.ttl = time.Duration(w.task.TTL) * time.Millisecond
	var err error
	w.client, err = leasehold.Connect(
		leasehold.URL(w.task.URL),
		leasehold.TTL(w.ttl),
		leasehold.RequestTimeout(time.Duration(w.task.Patience)*time.Millisecond),
	)
	if err != nil {
		return err
	}
	if w.log, err = history.Open(w.task.History); err != nil {
		return err
	}
	w.write(history.Record{Kind: history.Begin, At: uint64(clock.Now()), Value: uint64(os.Getpid())})
	var running sync.WaitGroup
	for number := 0; number < w.task.Tasks; number++ {
		turns, err := newTurns(w, uint16(number))
		if err != nil {
			return err
		}
		running.Add(1)
		go func() {
			defer running.Done()
			for !w.over() {
				turns.turn()
			}
		}()
	}
	running.Wait()
	_ = w.client.Close()
	w.write(history.Record{Kind: history.End, At: uint64(clock.Now())})
	return nil
}

// write adds the worker's number to a record and appends it. A history with a hole would be judged wrongly.
func (w *worker) write(record history.Record) {
	record.Worker = w.task.Worker
	if err := w.log.Write(record); err != nil {
		log.Fatal("cannot write the history: ", err)
	}
}

func (w *worker) claim() uint64 { return atomic.AddUint64(&w.claims, 1) }
