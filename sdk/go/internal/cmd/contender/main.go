// Command contender is one process of the test in which programs of all languages share a lock. docs/sdk-protocol.md
// has the task.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math/rand"
	"os"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
	"example.invalid/leasehold/sdk/go/internal/clock"
)

type task struct {
	URL    string
	Lock   string
	TTL    int64 `json:"ttl_ms"`
	Rounds int
	Log    string
	Me     any
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("contender: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: contender TASK")
	}
	text, err := os.ReadFile(os.Args[1])
	var task task
	if err == nil {
		err = json.Unmarshal(text, &task)
	}
	if err == nil {
		err = run(task)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(task task) error {
	client, err := leasehold.Connect(leasehold.URL(task.URL))
	if err != nil {
		return err
	}
	defer client.Close()
	file, err := os.OpenFile(task.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	mutex := client.Mutex(task.Lock, leasehold.TTL(time.Duration(task.TTL)*time.Millisecond))
	dice := rand.New(rand.NewSource(int64(os.Getpid())))
	for round := 0; round < task.Rounds; {
		lock, err := mutex.Lock(context.Background())
		if err != nil {
			// A server that restarts, or a network that fails, ends no contender.
			time.Sleep(20 * time.Millisecond)
			continue
		}
		say := func(what string) error {
			_, err := fmt.Fprintf(file, "%v %s %d %d\n", task.Me, what, lock.Fence(), clock.Now())
			return err
		}
		if err := say("enter"); err != nil {
			return err
		}
		time.Sleep(time.Duration(1+dice.Intn(5)) * time.Millisecond)
		word := "leave"
		if lock.Check() != nil {
			word = "lost"
		}
		if err := say(word); err != nil {
			return err
		}
		_ = lock.Unlock(context.Background())
		round++
	}
	return nil
}
