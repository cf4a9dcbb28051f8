package leasehold

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"

	"example.invalid/leasehold/sdk/go/internal/protocol"
	"example.invalid/leasehold/sdk/go/internal/wire"
)

const (
	// idleTime is how long an unused connection is kept: less than a server waits for the next request.
	idleTime = 4 * time.Second
	maxIdle  = 64
	// connectTime is how long connecting may take: a lost packet is sent again after one second, and then after two.
	connectTime = 4 * time.Second
	// silent is how long a call may be without an answer before unused connections are suspect too.
	silent = time.Second
	// maxAnswer is more than a full page of locks needs.
	maxAnswer = 64 << 20
)

// transport sends requests to one server, and never says more about a failure than people may see.
type transport struct {
	base  string
	token string
	http  http.RoundTripper
}

func newTransport(base, token string, settings *tls.Config) *transport {
	dialer := &net.Dialer{Timeout: connectTime, KeepAlive: time.Second, Control: noticeSilence}
	return &transport{base: base, token: token, http: &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     settings,
		TLSHandshakeTimeout: connectTime,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{}, // one request per connection
		MaxIdleConns:        maxIdle,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     idleTime,
		DisableCompression:  true,
	}}
}

func (t *transport) forgetIdle() {
	if pool, ok := t.http.(interface{ CloseIdleConnections() }); ok {
		pool.CloseIdleConnections()
	}
}

// answer is what the server said.
type answer struct {
	status     int
	body       []byte
	retryAfter time.Duration
	// again says that an earlier try of this call, on a connection that had died, got no answer.
	again bool
}

// request is one call. Its body may depend on whether an earlier try got no answer.
type request struct {
	method, path string
	body         func(again bool) any
	limit        time.Duration
}

func get(path string, limit time.Duration) request {
	return request{method: http.MethodGet, path: path, limit: limit}
}

func post(path string, body any, limit time.Duration) request {
	return request{method: http.MethodPost, path: path, body: func(bool) any { return body }, limit: limit}
}

// call sends a request. If a connection that was used before breaks, it sends the request once more on a new one: the
// server may have restarted, and every call is safe to repeat.
func (t *transport) call(ctx context.Context, what request) (answer, *Error) {
	limited, cancel := context.WithTimeout(ctx, what.limit)
	defer cancel()
	started := time.Now()
	result, reused, err := t.send(limited, what, false)
	if err != nil && reused && limited.Err() == nil {
		t.forgetIdle()
		first := err.sent
		result, _, err = t.send(limited, what, first)
		result.again = first
		if err != nil {
			err.sent = err.sent || first
		}
	}
	if err == nil {
		return result, nil
	}
	switch {
	case ctx.Err() != nil:
		err = &Error{Kind: KindAborted, Message: "the call was cancelled", cause: ctx.Err(), sent: err.sent}
	case limited.Err() != nil:
		err = &Error{Kind: KindNetworkTimeout, Message: "the server did not answer in time", sent: err.sent}
	}
	if time.Since(started) >= silent {
		// Where one connection got no answer, others opened the same way will get none either.
		t.forgetIdle()
	}
	return result, err
}

// send makes one try. It reports whether the try met a connection that had been used before.
func (t *transport) send(ctx context.Context, what request, again bool) (result answer, reused bool, fault *Error) {
	connected := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		connected, reused = true, info.Reused
	}})
	var body io.Reader
	if what.body != nil {
		text, err := json.Marshal(what.body(again))
		if err != nil {
			return result, false, &Error{Kind: KindInternal, Message: "cannot encode the request", cause: err}
		}
		body = bytes.NewReader(text)
	}
	message, err := http.NewRequestWithContext(ctx, what.method, t.base+what.path, body)
	if err != nil {
		return result, false, invalid(urlHint + "it cannot be parsed")
	}
	// Only this function repeats a request, because a repeat may have to say that it is one.
	message.GetBody = nil
	if what.body != nil {
		message.Header.Set("Content-Type", "application/json")
	}
	if t.token != "" {
		message.Header.Set("Authorization", "Bearer "+t.token)
	}
	response, err := t.http.RoundTrip(message)
	if err != nil {
		return result, reused, broken(err, connected)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = errors.New("the answer is too long for a lock server")
	}
	if err != nil {
		return result, reused, broken(err, true)
	}
	result = answer{status: response.StatusCode, body: text}
	if seconds, err := strconv.ParseInt(response.Header.Get("Retry-After"), 10, 32); err == nil && seconds > 0 {
		result.retryAfter = time.Duration(seconds) * time.Second
	}
	return result, reused, nil
}

// broken describes a connection that could not be made, or that broke.
func broken(err error, connected bool) *Error {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		plain     tls.RecordHeaderError
	)
	unavailable := func(message string) *Error {
		return &Error{Kind: KindUnavailable, Message: message, cause: err, sent: connected}
	}
	switch text := err.Error(); {
	case errors.As(err, &authority):
		return unavailable("the server's certificate is not signed by a trusted authority; name its authority with `CA`")
	case errors.As(err, &host):
		return unavailable("the server's certificate is for a different host than the one in the URL")
	case errors.As(err, &plain):
		return unavailable("the server does not speak TLS; write http:, or check the port")
	case strings.Contains(text, "remote error: tls:") && strings.Contains(text, "certificate"):
		return &Error{Kind: KindAuthFailed, cause: err,
			Message: "the server wants a certificate of the client; check `Certificate`"}
	case strings.Contains(text, "malformed HTTP response"):
		fault := unavailable("the server does not speak HTTP; if it uses TLS, write https:")
		fault.cause = nil // it would show what the server sent
		return fault
	case connected:
		return unavailable("the connection to the server broke; whether the call took effect is unknown")
	}
	return unavailable("cannot reach the server; check the host and port, and that it is running")
}

// read decodes the body of an answer that is not an error.
func (a answer) read(into any) *Error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return a.odd("cannot decode the answer; check that this is a leasehold server of this version")
	}
	return nil
}

// odd is the error for an answer that no leasehold server gives. It may have done something all the same.
func (a answer) odd(message string) *Error {
	return &Error{Kind: KindInternal, Message: message, Status: a.status, sent: true}
}

// fault is the error for any other answer: by the server's own code, or by the status if a proxy answered.
func (a answer) fault() *Error {
	var said wire.Problem
	if json.Unmarshal(a.body, &said) != nil {
		said = wire.Problem{}
	}
	kind := Kind(protocol.Kind(a.status, said.Code))
	message := said.Error
	switch {
	case message != "":
	case kind == KindUnsupported:
		message = "there is no leasehold server at this address"
	default:
		message = "the server answered with status " + strconv.Itoa(a.status)
	}
	return &Error{
		Kind: kind, Message: message, Status: a.status, retryAfter: a.retryAfter, sent: true, body: a.body,
	}
}
