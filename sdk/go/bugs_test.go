package leasehold_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"example.invalid/leasehold/sdk/go/internal/bench"
)

// TestPlantedBugsAreSeen plants each bug in a copy of the package. The test that is named for it must fail.
func TestPlantedBugsAreSeen(t *testing.T) {
	if os.Getenv("LEASEHOLD_TEST_COPY") != "" {
		t.Skip("this is such a copy")
	}
	if raceDetector {
		t.Skip("the copies are built without the race detector")
	}
	t.Parallel()
	type edit struct{ file, old, new string }
	for _, bug := range []struct {
		about, test string
		edits       []edit
	}{
		{"the deadline counts from the answer", "TestDeadlineCountsFromSending", []edit{
			{"acquire.go", "			ok, late := a.judge(sent, g)", "			sent = clock.Now()\n			ok, late := a.judge(sent, g)"},
		}},
		{"a loss heals", "TestLossDoesNotHeal", []edit{
			{"held.go", "		if !h.alive() {\n			return\n		}\n		// Answers", "		h.loss = nil\n		// Answers"},
		}},
		{"renewal runs on the thread of the user", "TestBlockedProgramKeepsItsLock", []edit{
			{"keeper.go", "		go k.run(k.alarm)\n", ""},
			{"lock.go", "func (l *Lock) Check() error {\n", "func (l *Lock) Check() error {\n" +
				"	if one, due := l.held.begin(0); due {\n		l.client.keeper.renew([]renewal{one})\n	}\n"},
		}},
		{"a retry has a new id", "TestRepeatKeepsItsID", []edit{
			{"acquire.go", "	a.polls = false\n", "	a.polls = false\n	a.id, _ = newLeaseID()\n"},
		}},
		{"a cancelled acquire gives nothing back", "TestCancelGivesBack", []edit{
			{"acquire.go", "	if !a.pending {\n		return\n	}\n", "	if true {\n		return\n	}\n"},
		}},
	} {
		bug := bug
		t.Run(strings.ReplaceAll(bug.about, " ", "_"), func(t *testing.T) {
			t.Parallel()
			copied := copyModule(t)
			for _, one := range bug.edits {
				path := filepath.Join(copied, one.file)
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Count(string(text), one.old) != 1 {
					t.Fatalf("%s has %d places for the bug", one.file, strings.Count(string(text), one.old))
				}
				changed := strings.Replace(string(text), one.old, one.new, 1)
				if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			run := exec.Command("go", "test", "-vet=off", "-count=1", "-run", "^"+bug.test+"$", ".")
			run.Dir = copied
			env, err := bench.Env()
			if err != nil {
				t.Fatal(err)
			}
			run.Env = append(env, "LEASEHOLD_TEST_COPY=yes")
			output, err := run.CombinedOutput()
			if err == nil || !strings.Contains(string(output), "--- FAIL: "+bug.test) {
				t.Errorf("%s does not see it:\n%s", bug.test, output)
			}
		})
	}
}

// copyModule copies the sources into a folder that lies as deep, because tests look for the repository from there.
func copyModule(t *testing.T) string {
	t.Helper()
	target := filepath.Join(t.TempDir(), "sdk", "go")
	err := filepath.Walk(".", func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if info.IsDir() {
			if info.Name() == ".build" {
				return filepath.SkipDir
			}
			return os.MkdirAll(filepath.Join(target, path), 0o700)
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(target, path), text, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return target
}
