package leasehold_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
	"example.invalid/leasehold/sdk/go/internal/bench"
)

func TestBadSettingsAreNamed(t *testing.T) {
	t.Setenv("LEASEHOLD_URL", "")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	at := leasehold.URL("http://127.0.0.1:1")
	for _, one := range []struct {
		text string
		opts []leasehold.ConnectOption
	}{
		{"LEASEHOLD_URL", nil},
		{"the scheme is http or https", []leasehold.ConnectOption{leasehold.URL("redis://host")}},
		{"it cannot be parsed", []leasehold.ConnectOption{leasehold.URL("http://ho st:x")}},
		{"must not contain a token", []leasehold.ConnectOption{leasehold.URL("http://me:secret@host")}},
		{"there is no host", []leasehold.ConnectOption{leasehold.URL("http:///x")}},
		{"unknown option", []leasehold.ConnectOption{leasehold.URL("http://host?token=secret")}},
		{"`TokenFile`", []leasehold.ConnectOption{at, leasehold.TokenFile("/does/not/exist")}},
		{"`TokenFile` is empty", []leasehold.ConnectOption{at, leasehold.TokenFile(empty)}},
		{"the token must be ASCII", []leasehold.ConnectOption{at, leasehold.Token("se cret")}},
		{"`CA`", []leasehold.ConnectOption{at, leasehold.CA(empty)}},
		{"`Certificate`", []leasehold.ConnectOption{at, leasehold.Certificate(empty, "")}},
		{"`TTL`", []leasehold.ConnectOption{at, leasehold.TTL(time.Millisecond)}},
		{"`Owner`", []leasehold.ConnectOption{at, leasehold.Owner("")}},
		{"`Metadata`", []leasehold.ConnectOption{at, leasehold.Metadata(strings.Repeat("x", 4097))}},
		{"`Wait`", []leasehold.ConnectOption{at, leasehold.Wait(-1)}},
		{"`MaxHold`", []leasehold.ConnectOption{at, leasehold.MaxHold(1)}},
		{"`WaitPerCall`", []leasehold.ConnectOption{at, leasehold.WaitPerCall(time.Minute)}},
		{"`RequestTimeout`", []leasehold.ConnectOption{at, leasehold.RequestTimeout(0)}},
	} {
		_, err := leasehold.Connect(one.opts...)
		if leasehold.KindOf(err) != leasehold.KindInvalidArgument || !strings.Contains(err.Error(), one.text) {
			t.Errorf("%s: got %v", one.text, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("it shows a secret: %v", err)
		}
	}
	c := connect(t, "http://127.0.0.1:1")
	_, err := c.Semaphore("x", 0).TryAcquire(within(t))
	if leasehold.KindOf(err) != leasehold.KindInvalidArgument {
		t.Errorf("got %v", err)
	}
	_, err = c.Mutex("\xff").TryLock(within(t))
	if leasehold.KindOf(err) != leasehold.KindInvalidArgument {
		t.Errorf("got %v", err)
	}
}

// serve starts a lock server with these flags and returns its URL.
func serve(t *testing.T, flags ...string) string {
	t.Helper()
	env, err := bench.Env()
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(env[len(env)-2], "=")
	all := append([]string{"serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--accept-risks"}, flags...)
	server := exec.Command(program, all...)
	server.Dir = t.TempDir()
	output, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if _, address, found := strings.Cut(lines.Text(), "LEASEHOLD_URL="); found {
			return address
		}
	}
	t.Fatal("the server does not start")
	return ""
}

func TestTokenAndCertificatesAreUsed(t *testing.T) {
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	env, err := bench.Env()
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(env[len(env)-2], "=")
	made, err := exec.Command(program, "token", "create", "--tokens", file("tokens"), "--prefix", "ci/").Output()
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(made))
	authority := newAuthority(t, file("ca.pem"))
	authority.sign(t, file("server.pem"), file("server.key"))
	authority.sign(t, file("client.pem"), file("client.key"))
	if err := os.WriteFile(file("token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := serve(t, "--tokens", file("tokens"), "--tls-cert", file("server.pem"), "--tls-key", file("server.key"),
		"--tls-client-ca", file("ca.pem"))
	if !strings.HasPrefix(address, "https://") {
		t.Fatal(address)
	}
	try := func(name string, opts ...leasehold.ConnectOption) error {
		lock, err := connect(t, address, opts...).Mutex(name).TryLock(within(t))
		if err == nil {
			err = lock.Unlock(within(t))
		}
		return err
	}
	ca, certificate := leasehold.CA(file("ca.pem")), leasehold.Certificate(file("client.pem"), file("client.key"))
	if err := try("ci/x", ca, certificate, leasehold.Token(token)); err != nil {
		t.Errorf("with everything: %v", err)
	}
	if err := try("ci/x", ca, certificate, leasehold.TokenFile(file("token"))); err != nil {
		t.Errorf("with a file: %v", err)
	}
	query := url.Values{"ca": {file("ca.pem")}, "cert": {file("client.pem")}, "key": {file("client.key")},
		"token_file": {file("token")}}
	inURL, err := leasehold.Connect(leasehold.URL(address + "?" + query.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	must2(inURL.Mutex("ci/y").TryLock(within(t)))(t)
	t.Setenv("LEASEHOLD_TOKEN", token)
	if err := try("ci/x", ca, certificate); err != nil {
		t.Errorf("by the environment: %v", err)
	}
	for about, err := range map[string]error{
		"another name":   try("other", ca, certificate),
		"another token":  try("ci/x", ca, certificate, leasehold.Token("wrong")),
		"no certificate": try("ci/x", ca),
	} {
		if leasehold.KindOf(err) != leasehold.KindAuthFailed {
			t.Errorf("%s: got %v", about, err)
		}
	}
	if err := try("ci/x", certificate); leasehold.KindOf(err) != leasehold.KindUnavailable ||
		!strings.Contains(err.Error(), "`CA`") {
		t.Errorf("without the authority: got %v", err)
	}
}

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, file string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, file, "CERTIFICATE", der)
	return authority{certificate: template, key: key}
}

func (a authority) sign(t *testing.T, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "127.0.0.1"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, certFile, "CERTIFICATE", der)
	bytes, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, keyFile, "EC PRIVATE KEY", bytes)
}

func writePEM(t *testing.T, file, kind string, bytes []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
		t.Fatal(err)
	}
}
