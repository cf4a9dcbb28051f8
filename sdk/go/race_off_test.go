//go:build !race

package leasehold_test

const raceDetector = false
