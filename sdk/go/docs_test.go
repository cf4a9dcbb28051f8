package leasehold_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.invalid/leasehold/sdk/go/internal/bench"
)

var blocks = regexp.MustCompile("(?s)```go\n(.*?)```")

// flat removes the indentation, which differs between a page and a function.
func flat(code string) string {
	lines := strings.Split(strings.TrimSpace(code), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

// The code on the pages is in the examples, which run as tests.
func TestCodeOfThePagesIsInTheExamples(t *testing.T) {
	if os.Getenv("LEASEHOLD_TEST_COPY") != "" {
		t.Skip("this is a copy without the pages")
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"README.md", filepath.Join(bench.Root(), "docs", "go.md")} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found := blocks.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s has no code", page)
		}
		for _, block := range found {
			if !strings.Contains(flat(string(examples)), flat(block[1])) {
				t.Errorf("%s has code that is in no example:\n%s", page, block[1])
			}
		}
	}
}
