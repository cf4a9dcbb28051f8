// Package bench drives a lock server behind a proxy that fails on command. docs/sdk-protocol.md has the commands.
package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// Bench is a running server with its proxy. Both end with the bench, and with this process.
type Bench struct {
	// Server and Proxy are the addresses.
	Server, Proxy string

	mu      sync.Mutex
	process *exec.Cmd
	input   io.WriteCloser
	output  *bufio.Reader
}

// Root is the folder of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
}

// program finds a program by its variable, or where cargo puts it.
func program(variable, built string) (string, error) {
	path := os.Getenv(variable)
	if path == "" {
		path = filepath.Join(Root(), "target", "debug", built)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: set %s, or build it with cargo: %w", built, variable, err)
	}
	return path, nil
}

// Env is the environment in which a test elsewhere finds the same programs.
func Env() ([]string, error) {
	server, err := program("LEASEHOLD_BIN", "leasehold")
	if err != nil {
		return nil, err
	}
	proxy, err := program("LEASEHOLD_FAULT_PROXY", filepath.Join("examples", "fault-proxy"))
	if err != nil {
		return nil, err
	}
	return append(os.Environ(), "LEASEHOLD_BIN="+server, "LEASEHOLD_FAULT_PROXY="+proxy), nil
}

// Start starts a server on SQLite and a proxy before it, on free ports of loopback.
func Start() (*Bench, error) {
	env, err := Env()
	if err != nil {
		return nil, err
	}
	_, proxy, _ := strings.Cut(env[len(env)-1], "=")
	b := &Bench{process: exec.Command(proxy)}
	b.process.Env = env
	b.process.Stderr = os.Stderr
	if b.input, err = b.process.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := b.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.process.Start(); err != nil {
		return nil, err
	}
	b.output = bufio.NewReader(output)
	line, err := b.output.ReadString('\n')
	if err == nil {
		err = json.Unmarshal([]byte(line), b)
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("the fault proxy said %q: %w", line, err)
	}
	return b, nil
}

// Do sends a command and returns the value of its answer.
func (b *Bench) Do(line string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := io.WriteString(b.input, line+"\n"); err != nil {
		return "", err
	}
	answer, err := b.output.ReadString('\n')
	if err != nil {
		return "", err
	}
	answer = strings.TrimSpace(answer)
	if answer == "ok" {
		return "", nil
	}
	if value := strings.TrimPrefix(answer, "ok "); value != answer {
		return value, nil
	}
	return "", errors.New(line + ": " + answer)
}

// Close ends the server and the proxy.
func (b *Bench) Close() {
	_ = b.input.Close()
	_ = b.process.Wait()
}
