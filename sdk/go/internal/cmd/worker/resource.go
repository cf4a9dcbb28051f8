package main

import (
	"encoding/binary"
	"io"
	"net"

	"example.invalid/leasehold/sdk/go/internal/history"
)

// verb is what a task asks of the resource that the locks protect.
type verb byte

const (
	write verb = 0
	enter verb = 1
	leave verb = 2
)

// resource is a task's connection to it.
type resource struct{ conn net.Conn }

func dial(path string) (*resource, error) {
	conn, err := net.Dial("unix", path)
	return &resource{conn: conn}, err
}

// ask sends a request and returns whether a write was taken.
func (r *resource) ask(what verb, of history.Record, worker uint32) (bool, error) {
	var request [40]byte
	little := binary.LittleEndian
	request[0] = byte(what)
	little.PutUint16(request[2:], of.Place)
	little.PutUint16(request[4:], of.Task)
	little.PutUint32(request[8:], worker)
	little.PutUint64(request[16:], of.Claim)
	little.PutUint64(request[24:], of.Lease)
	little.PutUint64(request[32:], of.Fence)
	if _, err := r.conn.Write(request[:]); err != nil {
		return false, err
	}
	var answer [1]byte
	_, err := io.ReadFull(r.conn, answer[:])
	return answer[0] == 1, err
}
