package scenarios

import (
	"encoding/json"
	"strings"
	"testing"
)

// bin/scenarios runs the whole file. These tests show that the runner would see a failure.

func vectors(t *testing.T) Vectors {
	t.Helper()
	vectors, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return vectors
}

func TestPureCasesPass(t *testing.T) {
	cases := 0
	Pure(vectors(t), func(id string, err error) {
		if cases++; err != nil {
			t.Errorf("%s: %v", id, err)
		}
	})
	if cases < 100 {
		t.Errorf("there are only %d cases", cases)
	}
}

func TestPureCasesCanFail(t *testing.T) {
	wrong := vectors(t)
	wrong.Pure.Segments[0].Segment += "x"
	wrong.Pure.Deadlines[0].Deadline++
	wrong.Pure.Errors[0].Kind = "lost"
	wrong.Pure.Records[0].At++
	var failed []string
	Pure(wrong, func(id string, err error) {
		if err != nil {
			failed = append(failed, id)
		}
	})
	if got := strings.Join(failed, " "); got != "segments-0 deadlines-0 errors-0 records-0" {
		t.Errorf("these failed: %s", got)
	}
}

func TestScenariosCanFail(t *testing.T) {
	steps := func(texts ...string) (all []json.RawMessage) {
		for _, text := range texts {
			all = append(all, json.RawMessage(text))
		}
		return all
	}
	const try = `{"do": "try", "client": "a", "lock": "l", "as": "x", "expect": "held"}`
	file := Vectors{Scenarios: []Scenario{
		{ID: "good", Steps: steps(try, `{"do": "release", "as": "x", "expect": "released"}`)},
		{ID: "held", Steps: steps(try, try)},
		{ID: "gone", Steps: steps(try, `{"do": "release", "as": "x", "expect": "gone"}`)},
		{ID: "lost", Steps: steps(try, `{"do": "check", "as": "x", "expect": "lost"}`)},
		{ID: "reason", Steps: steps(try, `{"do": "lost", "as": "x", "within": 100}`)},
		{ID: "shown", Steps: steps(try, `{"do": "show", "lock": "l", "holders": 2}`)},
		{ID: "fence", Steps: steps(try, `{"do": "fences", "rise": ["x", "x"]}`)},
		{ID: "left", Steps: steps(try, `{"do": "left", "as": "x", "least": 0, "most": 1000}`)},
		{ID: "field", Steps: steps(`{"do": "sleep", "ms": 1, "unknown": true}`)},
		{ID: "step", Steps: steps(try, `{"do": "dance", "as": "x"}`)},
	}}
	passed := map[string]bool{}
	err := Run(file, Straight, nil, func(id string, err error) { passed[id] = err == nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range file.Scenarios {
		if passed[one.ID] != (one.ID == "good") {
			t.Errorf("%s: passed is %v", one.ID, passed[one.ID])
		}
	}
	if len(passed) != len(file.Scenarios) {
		t.Errorf("only %d ran", len(passed))
	}
}
