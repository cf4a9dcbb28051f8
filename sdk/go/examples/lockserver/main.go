// Command lockserver is shaped like the example program of LockServer's Go SDK: only the import differs. It takes a
// lock, keeps it alive with a heartbeat while it works, and releases it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	lockclient "example.invalid/leasehold/sdk/go"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := lockclient.New(os.Getenv("LEASEHOLD_URL"), nil)

	opts := lockclient.AcquireOptions{TTL: 3 * time.Second}
	lease, err := client.AcquireWithRetry(ctx, "job-lock", "worker-1", opts)
	if err != nil {
		log.Fatal(err)
	}
	defer client.ReleaseOnce(ctx, lease)

	token := lease.FencingTokenValue()
	// downstream write must enforce fencing

	hbOpts := lockclient.HeartbeatOptions{Interval: time.Second, ExtendBy: 3 * time.Second}
	hbErrs := client.StartHeartbeat(ctx, lease, hbOpts)

	for step := 1; step <= 5; step++ {
		select {
		case err := <-hbErrs:
			log.Print("the lease is lost: ", err)
			return
		case <-time.After(time.Second):
			fmt.Printf("step %d, written with fence %t\n", step, token > 0)
		}
	}
}
