package leasehold

import (
	"crypto/rand"
	"encoding/base64"
)

// newLeaseID makes the id of one acquisition: 16 random bytes as 22 characters of base64url. It is a secret.
func newLeaseID() (string, error) {
	var bytes [16]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		return "", &Error{Kind: KindInternal, Message: "the system gives no random numbers", cause: err}
	}
	return base64.RawURLEncoding.EncodeToString(bytes[:]), nil
}
