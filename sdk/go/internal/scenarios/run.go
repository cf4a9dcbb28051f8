package scenarios

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"time"

	"example.invalid/leasehold/sdk/go/internal/bench"
)

// Network is what is between the clients and the server.
type Network string

// The networks.
const (
	// Straight is nothing.
	Straight Network = "straight"
	// Weather is faults at random.
	Weather Network = "weather"
	// Faults are those that the scenario asks for.
	Faults Network = "faults"
)

// Networks are all of them.
var Networks = []Network{Straight, Weather, Faults}

// atOnce is how many scenarios run at once.
const atOnce = 8

// hangs is how long a scenario may take.
const hangs = 60 * time.Second

func (n Network) runs(one Scenario) bool {
	switch n {
	case Faults:
		return one.Faults
	case Weather:
		return !one.Faults && (one.Weather == nil || *one.Weather)
	}
	return !one.Faults
}

// Run runs the scenarios of one network; with ids, only these. Scenarios in bad weather are reported as weather/ID.
func Run(vectors Vectors, network Network, ids map[string]bool, report func(id string, err error)) error {
	var shared *bench.Bench
	if network != Faults {
		var err error
		if shared, err = bench.Start(); err != nil {
			return err
		}
		defer shared.Close()
	}
	if network == Weather {
		seed := os.Getenv("SEED")
		if seed == "" {
			seed = strconv.Itoa(rand.New(rand.NewSource(time.Now().UnixNano())).Intn(1 << 30))
		}
		fmt.Println("# weather with SEED=" + seed)
		if _, err := shared.Do("weather " + seed); err != nil {
			return err
		}
	}
	places := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	var mu sync.Mutex
	for _, one := range vectors.Scenarios {
		if !network.runs(one) || len(ids) > 0 && !ids[one.ID] {
			continue
		}
		one := one
		running.Add(1)
		places <- struct{}{}
		go func() {
			defer running.Done()
			defer func() { <-places }()
			err := runOne(one, network, shared)
			mu.Lock()
			defer mu.Unlock()
			id := one.ID
			if network == Weather {
				id = "weather/" + id
			}
			report(id, err)
		}()
	}
	running.Wait()
	return nil
}

func runOne(one Scenario, network Network, shared *bench.Bench) error {
	own := shared
	if network == Faults {
		var err error
		if own, err = bench.Start(); err != nil {
			return err
		}
		defer own.Close()
	}
	done := make(chan error, 1)
	go func() { done <- newCase(own, network).run(one) }()
	timer := time.NewTimer(hangs)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errors.New("it hangs")
	}
}
