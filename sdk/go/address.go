package leasehold

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"strings"
)

// config says how to reach a server.
type config struct {
	url       string
	token     string
	tokenFile string
	caFile    string
	certFile  string
	keyFile   string
	defaults  options
}

type connectOption func(*config)

func (o connectOption) connect(c *config) { o(c) }

// URL sets the address of the server, such as http://locks.internal:7420 or https://host/base; without it, that is
// LEASEHOLD_URL. The query may have token_file, ca, cert and key, as in the Rust client. A URL never holds a token.
func URL(address string) ConnectOption { return connectOption(func(c *config) { c.url = address }) }

// Token sets the bearer token; without it, that is LEASEHOLD_TOKEN, or what the file of LEASEHOLD_TOKEN_FILE holds.
func Token(token string) ConnectOption { return connectOption(func(c *config) { c.token = token }) }

// TokenFile sets a file that holds the bearer token.
func TokenFile(path string) ConnectOption {
	return connectOption(func(c *config) { c.tokenFile = path })
}

// CA sets the file of the authority that signed the server's certificate, in PEM; without it, the system's count.
func CA(path string) ConnectOption { return connectOption(func(c *config) { c.caFile = path }) }

// Certificate sets the files of the client's own certificate and its key, in PEM.
func Certificate(certFile, keyFile string) ConnectOption {
	return connectOption(func(c *config) { c.certFile, c.keyFile = certFile, keyFile })
}

const urlHint = "the URL of a server is http://host:port: "

// base reads the address into the part before /v1/, and takes options from its query.
func (c *config) base() (string, error) {
	address := c.url
	if address == "" {
		address = os.Getenv("LEASEHOLD_URL")
	}
	if address == "" {
		return "", invalid("no server: pass `URL`, or set LEASEHOLD_URL to http://host:port")
	}
	// The error of url.Parse would show the URL, and with it a password.
	parsed, err := url.Parse(address)
	switch {
	case err != nil:
		return "", invalid(urlHint + "it cannot be parsed")
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		return "", invalid(urlHint + "the scheme is http or https")
	case parsed.User != nil:
		return "", invalid(urlHint + "a URL must not contain a token; use `Token` or `TokenFile`")
	case parsed.Hostname() == "":
		return "", invalid(urlHint + "there is no host")
	case parsed.Fragment != "":
		return "", invalid(urlHint + "it has no fragment")
	}
	for name, values := range parsed.Query() {
		target, known := map[string]*string{
			"token_file": &c.tokenFile, "ca": &c.caFile, "cert": &c.certFile, "key": &c.keyFile,
		}[name]
		if !known || len(values) != 1 {
			return "", invalid(urlHint + "unknown option; the options are `token_file`, `ca`, `cert` and `key`, once each")
		}
		if *target == "" {
			*target = values[0]
		}
	}
	return parsed.Scheme + "://" + parsed.Host + strings.TrimRight(parsed.EscapedPath(), "/"), nil
}

// secret finds the token. An option comes before the environment, a token before a file.
func (c *config) secret() (string, error) {
	token, file := c.token, c.tokenFile
	if token == "" && file == "" {
		token, file = os.Getenv("LEASEHOLD_TOKEN"), os.Getenv("LEASEHOLD_TOKEN_FILE")
	}
	if token == "" && file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", &Error{Kind: KindInvalidArgument, Message: "cannot read the file of `TokenFile`", cause: err}
		}
		token = strings.TrimSpace(string(text))
		if token == "" {
			return "", invalid("the file of `TokenFile` is empty")
		}
	}
	for _, char := range []byte(token) {
		if char <= ' ' || char > '~' {
			return "", invalid("the token must be ASCII characters without spaces")
		}
	}
	return token, nil
}

// tls reads the certificates.
func (c *config) tls() (*tls.Config, error) {
	bad := func(what string, err error) error {
		return &Error{Kind: KindInvalidArgument, Message: what, cause: err}
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.caFile != "" {
		pem, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, bad("cannot read the file of `CA`", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, invalid("the file of `CA` holds no certificate in PEM")
		}
	}
	if (c.certFile == "") != (c.keyFile == "") {
		return nil, invalid("`Certificate` needs both a certificate and its key")
	}
	if c.certFile != "" {
		pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, bad("cannot read the files of `Certificate`", err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return settings, nil
}
