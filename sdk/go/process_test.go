package leasehold_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
)

// process is this test program in another role, as another process.
type process struct {
	*exec.Cmd
	input  io.WriteCloser
	output *bufio.Reader
}

func start(t *testing.T, role, url, name string, ttl time.Duration, env ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(self)}
	p.Env = append(os.Environ(), "LEASEHOLD_TEST_ROLE="+role, "LEASEHOLD_URL="+url, "LEASEHOLD_TEST_NAME="+name,
		"LEASEHOLD_TEST_TTL="+ttl.String())
	p.Env = append(p.Env, env...)
	p.Stderr = os.Stderr
	if p.input, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.output = bufio.NewReader(output)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	return p
}

func (p *process) says(t *testing.T) string {
	t.Helper()
	line, err := p.output.ReadString('\n')
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

func (p *process) tell(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(p.input, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (p *process) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// play is what such a process does: it takes the lock, says so, and obeys lines of input.
func play(role string) {
	ttl, err := time.ParseDuration(os.Getenv("LEASEHOLD_TEST_TTL"))
	fail := func(err error) {
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	fail(err)
	if role == "one-thread" {
		runtime.GOMAXPROCS(1)
	}
	c, err := leasehold.Connect(leasehold.TTL(ttl))
	fail(err)
	lock, err := c.Mutex(os.Getenv("LEASEHOLD_TEST_NAME")).Lock(context.Background())
	fail(err)
	fmt.Println("fence", lock.Fence())
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		switch input.Text() {
		case "check":
			// Two looks, without a pause in which a timer could run: the work's context must be right at once too.
			context, check := lock.Context().Err(), lock.Check()
			fmt.Println("check", check, context)
		case "spin":
			for end := time.Now().Add(2 * ttl); time.Now().Before(end); {
			}
			fmt.Println("check", lock.Check(), lock.Context().Err())
		case "unlock":
			fmt.Println("unlock", lock.Unlock(context.Background()))
		}
	}
	// The parent has gone.
	os.Exit(0)
}

func TestStoppedProcessFindsItsLockLost(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	c, name := connect(t, shared.Server), unique(t)
	p := start(t, "hold", shared.Server, name, ttl)
	before := p.says(t)
	p.signal(t, syscall.SIGSTOP)
	// Nobody else can get the lock before the stopped process would find it lost.
	lock, err := c.Mutex(name).Lock(within(t))
	must(t, lock, err)
	if after := "fence " + lock.Fence().String(); after <= before {
		t.Errorf("the fence fell from %s to %s", before, after)
	}
	p.tell(t, "check")
	p.signal(t, syscall.SIGCONT)
	lost := "check leasehold: the lease was lost: no renewal was confirmed in time context canceled"
	if said := p.says(t); said != lost {
		t.Errorf("it says %q", said)
	}
	p.tell(t, "unlock")
	if said := p.says(t); !strings.HasPrefix(said, "unlock leasehold: the lease was lost") {
		t.Errorf("it says %q", said)
	}
	if lock.Check() != nil {
		t.Error("the release of the lost lock ended that of its successor")
	}
}

func TestKilledProcessFreesItsLock(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	c, name := connect(t, shared.Server), unique(t)
	p := start(t, "hold", shared.Server, name, ttl)
	p.says(t)
	p.signal(t, syscall.SIGKILL)
	_ = p.Wait()
	began := time.Now()
	lock, err := c.Mutex(name).Lock(within(t))
	must(t, lock, err)
	if took := time.Since(began); took > ttl+5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestKilledWaiterHoldsUpNobody(t *testing.T) {
	c, name := connect(t, shared.Server), unique(t)
	lock, err := c.Mutex(name).Lock(within(t))
	must(t, lock, err)
	p := start(t, "hold", shared.Server, name, time.Minute)
	waiters(t, c, name, 1)
	p.signal(t, syscall.SIGKILL)
	waiters(t, c, name, 0)
	if err := lock.Unlock(within(t)); err != nil {
		t.Fatal(err)
	}
	next, err := c.Mutex(name).Lock(within(t))
	must(t, next, err)
}

func TestBlockedProgramKeepsItsLock(t *testing.T) {
	t.Parallel()
	p := start(t, "one-thread", shared.Server, unique(t), 2*time.Second)
	p.says(t)
	p.tell(t, "spin")
	if said := p.says(t); said != "check <nil> <nil>" {
		t.Errorf("it says %q", said)
	}
}

func TestRestartedServerKeepsHolderAndWaiter(t *testing.T) {
	t.Parallel()
	b := own(t)
	c := connect(t, b.Server)
	name := unique(t)
	lock, err := c.Mutex(name, leasehold.TTL(6*time.Second)).Lock(within(t))
	must(t, lock, err)
	p := start(t, "hold", b.Server, name, 10*time.Second)
	waiters(t, c, name, 1)
	obey(t, b, "server restart")
	time.Sleep(3 * time.Second) // a renewal
	if lock.Check() != nil {
		t.Fatal(lock.Check())
	}
	waiters(t, c, name, 1)
	before := lock.Fence().String()
	if err := lock.Unlock(within(t)); err != nil {
		t.Fatal(err)
	}
	if said := p.says(t); said <= "fence "+before {
		t.Errorf("it says %q after %s", said, before)
	}
}
