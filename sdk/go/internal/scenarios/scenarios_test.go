package scenarios

import "testing"

func vectors(t *testing.T) Vectors {
	t.Helper()
	vectors, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(vectors.Scenarios) < 40 || len(vectors.Pure.Segments) == 0 {
		t.Fatal("the file holds too little")
	}
	return vectors
}

func fail(t *testing.T) func(string, error) {
	return func(id string, err error) {
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestPureCases(t *testing.T) { Pure(vectors(t), fail(t)) }

func TestScenariosPassStraightToTheServer(t *testing.T) { run(t, Straight) }

func TestScenariosPassThroughBadWeather(t *testing.T) { run(t, Weather) }

func TestScenariosWithFaultsPass(t *testing.T) { run(t, Faults) }

func run(t *testing.T, network Network) {
	if err := Run(vectors(t), network, nil, fail(t)); err != nil {
		t.Fatal(err)
	}
}
