package leasehold_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
)

func TestProgramOfLockServerRuns(t *testing.T) {
	t.Parallel()
	program := t.TempDir() + "/lockserver"
	if output, err := exec.Command("go", "build", "-o", program, "./examples/lockserver").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	b := own(t)
	c := connect(t, b.Server)
	run := exec.Command(program)
	run.Env = append(os.Environ(), "LEASEHOLD_URL="+b.Server)
	output, err := run.CombinedOutput()
	if err != nil || strings.Count(string(output), "with fence true") != 5 || strings.Contains(string(output), "lost") {
		t.Fatalf("%v: %s", err, output)
	}
	info, err := c.Show(within(t), "job-lock")
	if err != nil || info.Held || info.LastFence == 0 {
		t.Errorf("saw %+v, %v", info, err)
	}
}

func TestAcquireOnceSaysWhoHoldsIt(t *testing.T) {
	c, name := leasehold.New(shared.Server, nil), unique(t)
	lease, busy, err := c.AcquireOnce(within(t), name, "me", time.Minute)
	if err != nil || busy != nil || lease.LockName != name || lease.OwnerID != "me" || lease.FencingTokenValue() <= 0 ||
		len(lease.LeaseID) != 22 || lease.LeaseExpiryMS <= time.Now().UnixMilli() {
		t.Fatalf("%+v, %v, %v", lease, busy, err)
	}
	_, busy, err = c.AcquireOnce(within(t), name, "you", time.Minute)
	if err != nil || busy == nil || busy.Reason != "HELD" || busy.CurrentOwnerID != "me" || busy.RecommendedRetry <= 0 ||
		busy.CurrentExpiryMS <= time.Now().UnixMilli() || !errors.Is(busy, leasehold.ErrHeld) {
		t.Fatalf("%+v, %v", busy, err)
	}
	if strings.Contains(busy.Error(), name) {
		t.Errorf("the error shows the name: %v", busy)
	}
	expiry, renewed, reason, err := c.RenewOnce(within(t), lease, 2*time.Minute)
	if err != nil || !renewed || reason != "" || expiry <= lease.LeaseExpiryMS {
		t.Fatalf("%v, %v, %q, %v", expiry, renewed, reason, err)
	}
	released, reason, err := c.ReleaseOnce(within(t), lease)
	if err != nil || !released || reason != "" {
		t.Fatalf("%v, %q, %v", released, reason, err)
	}
	released, reason, err = c.ReleaseOnce(within(t), lease)
	if err != nil || released || reason == "" {
		t.Fatalf("%v, %q, %v", released, reason, err)
	}
	_, renewed, reason, err = c.RenewOnce(within(t), lease, time.Minute)
	if err != nil || renewed || reason != "NOT_OWNER_OR_EXPIRED" {
		t.Fatalf("%v, %q, %v", renewed, reason, err)
	}
}

func TestUnexpectedStatusIsTyped(t *testing.T) {
	c, name := leasehold.New(shared.Server, nil), unique(t)
	_, _, err := c.AcquireOnce(within(t), name, "me", 24*time.Hour)
	var status *leasehold.UnexpectedStatusError
	if !errors.As(err, &status) || status.Code != http.StatusBadRequest || status.Method != "POST" ||
		!strings.Contains(status.Body, "ttl_ms") || !strings.HasSuffix(status.Path, "/acquire") {
		t.Fatalf("got %#v", err)
	}
	if leasehold.KindOf(err) != leasehold.KindInvalidArgument || strings.Contains(err.Error(), name) {
		t.Errorf("got %v", err)
	}
	if _, _, err := leasehold.New("ftp://x", nil).AcquireOnce(within(t), name, "me", time.Minute); err == nil {
		t.Error("a bad URL is no error")
	}
	for _, lease := range []leasehold.Lease{{}, {LockName: "x", OwnerID: "y", LeaseID: "z"}} {
		if _, _, err := c.ReleaseOnce(within(t), lease); leasehold.KindOf(err) != leasehold.KindInvalidArgument {
			t.Errorf("got %v", err)
		}
	}
}

func TestRetriesAreBounded(t *testing.T) {
	c, name := leasehold.New(shared.Server, nil), unique(t)
	lease, err := c.AcquireWithRetry(within(t), name, "me", leasehold.AcquireOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var busy *leasehold.NotAcquiredError
	fast := leasehold.AcquireOptions{TTL: time.Minute, MaxRetries: 3, MaxRetry: 30 * time.Millisecond}
	if _, err := c.AcquireWithRetry(within(t), name, "you", fast); !errors.As(err, &busy) || busy.CurrentOwnerID != "me" {
		t.Fatalf("got %v", err)
	}
	began := time.Now()
	short := leasehold.AcquireOptions{TTL: time.Minute, MaxTotalWait: 200 * time.Millisecond}
	_, err = c.AcquireWithRetry(within(t), name, "you", short)
	if !errors.As(err, &busy) || time.Since(began) > 5*time.Second {
		t.Fatalf("got %v after %v", err, time.Since(began))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = c.AcquireWithRetry(ctx, name, "you", leasehold.AcquireOptions{TTL: time.Minute})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	_, err = c.AcquireWithRetry(within(t), name, "you", leasehold.AcquireOptions{})
	if leasehold.KindOf(err) != leasehold.KindInvalidArgument {
		t.Fatalf("got %v", err)
	}
	got := make(chan error)
	go func() {
		_, err := c.AcquireWithRetry(within(t), name, "you", leasehold.AcquireOptions{TTL: time.Minute})
		got <- err
	}()
	if _, _, err := c.ReleaseOnce(within(t), lease); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

func TestHeartbeatKeepsTheLease(t *testing.T) {
	t.Parallel()
	c, name := leasehold.New(shared.Server, nil), unique(t)
	lease, _, err := c.AcquireOnce(within(t), name, "me", 1500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	errs := c.StartHeartbeat(within(t), lease, leasehold.HeartbeatOptions{})
	time.Sleep(4 * time.Second)
	select {
	case err := <-errs:
		t.Fatalf("got %v", err)
	default:
	}
	if released, reason, err := c.ReleaseOnce(within(t), lease); !released || err != nil {
		t.Fatalf("%q, %v", reason, err)
	}
	if err, open := <-errs; open {
		t.Fatalf("a release is no loss: %v", err)
	}
}

func TestHeartbeatEndsWithItsContext(t *testing.T) {
	c, name := leasehold.New(shared.Server, nil), unique(t)
	lease, _, err := c.AcquireOnce(within(t), name, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	errs := c.StartHeartbeat(ctx, lease, leasehold.HeartbeatOptions{})
	cancel()
	if err, open := <-errs; open {
		t.Fatalf("got %v", err)
	}
	bad := c.StartHeartbeat(within(t), lease, leasehold.HeartbeatOptions{Interval: time.Minute, ExtendBy: time.Minute})
	if err := <-bad; leasehold.KindOf(err) != leasehold.KindInvalidArgument {
		t.Fatalf("got %v", err)
	}
	if _, open := <-bad; open {
		t.Fatal("the channel stays open")
	}
}

func TestHeartbeatReportsFaultsAndThenTheLoss(t *testing.T) {
	t.Parallel()
	b := own(t)
	c, name := leasehold.New(b.Proxy, &http.Client{Timeout: time.Millisecond}), unique(t)
	lease, _, err := c.AcquireOnce(within(t), name, "me", 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	errs := c.StartHeartbeat(within(t), lease, leasehold.HeartbeatOptions{})
	obey(t, b, "refuse on")
	obey(t, b, "reset")
	if err := <-errs; leasehold.KindOf(err) != leasehold.KindUnavailable {
		t.Fatalf("got %v", err)
	}
	obey(t, b, "refuse off")
	time.Sleep(4 * time.Second)
	obey(t, b, "blackhole")
	var last error
	for err := range errs {
		last = err
	}
	var lost *leasehold.LostError
	if !errors.As(last, &lost) || lost.Reason != leasehold.DeadlinePassed {
		t.Fatalf("the last thing is %v", last)
	}
}
