// Command fields prints which routes, fields and error codes the Go client uses, from the types that it uses itself.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"

	"example.invalid/leasehold/sdk/go/internal/wire"
)

// fields lists the JSON names of the fields of a type.
func fields(of any) []string {
	kind := reflect.TypeOf(of)
	var names []string
	for i := 0; i < kind.NumField(); i++ {
		name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

func main() {
	var codes []string
	for code := range wire.Kinds {
		codes = append(codes, code)
	}
	codes = append(codes, wire.HolderChanged, wire.Superseded, wire.Held, wire.WaitTimeout)
	sort.Strings(codes)
	text, err := json.MarshalIndent(map[string]any{
		"sends": map[string][]string{
			"Acquire":   fields(wire.Acquire{}),
			"RenewMany": fields(wire.RenewMany{}),
			"Renew":     fields(wire.Renew{}),
			"Release":   fields(wire.Release{}),
			"Revoke":    fields(wire.Revoke{}),
		},
		"reads": map[string][]string{
			"Acquired":    fields(wire.Acquired{}),
			"Busy":        fields(wire.Busy{}),
			"RenewedMany": fields(wire.RenewedMany{}),
			"RenewedEach": fields(wire.RenewedEach{}),
			"Released":    fields(wire.Released{}),
			"Revoked":     fields(wire.Revoked{}),
			"Lock":        fields(wire.Lock{}),
			"Holder":      fields(wire.Holder{}),
			"Waiter":      fields(wire.Waiter{}),
			"Listed":      fields(wire.Listed{}),
			"Problem":     fields(wire.Problem{}),
		},
		"paths": wire.Paths,
		"codes": codes,
	}, "", "  ")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}
