package leasehold

import (
	"strings"
	"unicode/utf8"

	"example.invalid/leasehold/sdk/go/internal/nfc"
)

const (
	maxNameBytes     = 512
	maxOwnerBytes    = 256
	maxMetadataBytes = 4096
)

// normalName returns the name in NFC, in which two spellings of one name are the same lock.
func normalName(name string) (string, error) {
	if !utf8.ValidString(name) {
		return "", invalid("the name must be UTF-8")
	}
	name = nfc.String(name)
	switch {
	case name == "":
		return "", invalid("the name must not be empty")
	case len(name) > maxNameBytes:
		return "", invalid("the name has %d bytes after NFC normalisation; at most %d are allowed",
			len(name), maxNameBytes)
	}
	return name, nil
}

const upperHex = "0123456789ABCDEF"

// segment writes a text as one segment of a path. A dot is escaped, because `.` and `..` have a meaning of their own.
func segment(text string) string {
	var path strings.Builder
	for i := 0; i < len(text); i++ {
		char := text[i]
		switch {
		case 'a' <= char && char <= 'z', 'A' <= char && char <= 'Z', '0' <= char && char <= '9',
			char == '-', char == '_', char == '~':
			path.WriteByte(char)
		default:
			path.WriteByte('%')
			path.WriteByte(upperHex[char>>4])
			path.WriteByte(upperHex[char&15])
		}
	}
	return path.String()
}
