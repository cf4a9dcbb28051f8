// Command scenarios runs sdk/vectors.json with the Go client: a line for each case. Arguments are the ids of the
// scenarios to run; without them it runs everything.
package main

import (
	"fmt"
	"os"

	"example.invalid/leasehold/sdk/go/internal/scenarios"
)

func main() {
	failed := false
	report := func(id string, err error) {
		if err == nil {
			fmt.Println("ok " + id)
			return
		}
		failed = true
		fmt.Printf("not ok %s: %v\n", id, err)
	}
	vectors, err := scenarios.Load()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot read the vectors:", err)
		os.Exit(1)
	}
	ids := map[string]bool{}
	for _, id := range os.Args[1:] {
		ids[id] = true
	}
	if len(ids) == 0 {
		scenarios.Pure(vectors, report)
	}
	for _, network := range scenarios.Networks {
		if err := scenarios.Run(vectors, network, ids, report); err != nil {
			fmt.Fprintln(os.Stderr, "cannot run:", err)
			os.Exit(1)
		}
	}
	if failed {
		os.Exit(1)
	}
}
