package view

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/keyspace"
)

var (
	// ErrPlaceLost says that an attempt's own key is gone.
	ErrPlaceLost = errors.New("place in the queue lost")
	// ErrForeignKey matches a ForeignKeyError.
	ErrForeignKey = errors.New("foreign key in the queue")
)

// A ForeignKeyError says which key in a lock's queue no lock has made, or one
// that something else has written over.
type ForeignKeyError struct {
	Key    string
	Nested bool // below another name; else it has no lease
}

func (e *ForeignKeyError) Error() string {
	if e.Nested {
		return fmt.Sprintf("%v: %q is not of the form <name>/<lease>, and would block this name for as long as it exists", ErrForeignKey, e.Key)
	}
	return fmt.Sprintf("%v: %q has no lease and would block this name until somebody deletes it", ErrForeignKey, e.Key)
}

// Is makes errors.Is(err, ErrForeignKey) true.
func (e *ForeignKeyError) Is(target error) bool { return target == ErrForeignKey }

// An Attempt is one acquisition of one name on one lease. Its fields are for
// the goroutine that runs it; what Waiting starts may read Rev.
type Attempt struct {
	Queue   string // prefix of all keys of the name, with the final slash
	Key     string // own key
	Lease   clientv3.LeaseID
	Holder  string // value of the own key: who is asking
	Waiting func() // called once, when the attempt starts to wait
	// Behind is told of the key that the attempt is going to wait for.
	Behind func(*mvccpb.KeyValue)
	// Trouble is told of failed reads that are going to be repeated, on
	// whatever goroutine.
	Trouble func(error)

	Rev int64 // create revision of the own key, 0 until known
	// Dirty says that a write of unknown outcome may still be under way, so
	// that the key can come back after it was deleted.
	Dirty bool
	// Err is why a wait failed, where the stock error does not tell.
	Err error

	waits bool
	opts  []clientv3.OpOption   // of the stock code's read of the predecessor
	pred  *clientv3.GetResponse // predecessor as the create transaction saw it
	own   *clientv3.GetResponse // own key as the last read saw it
}

type attemptKey struct{}

// NewContext returns ctx for calls on behalf of a.
func NewContext(ctx context.Context, a *Attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

func fromContext(ctx context.Context) *Attempt {
	a, _ := ctx.Value(attemptKey{}).(*Attempt)
	return a
}

// Foreign returns an error if kv is not the key of a waiter or holder.
func Foreign(queue string, kv *mvccpb.KeyValue) error {
	key := string(kv.Key)
	if keyspace.Below(queue, key) {
		return &ForeignKeyError{Key: key, Nested: true}
	}
	if kv.Lease == 0 {
		return &ForeignKeyError{Key: key}
	}
	return nil
}
