package call

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Tries notes how each try of one call ends: clientv3 repeats calls without a
// word, and at the end tells only that the context did. The zero value is ready.
type Tries struct {
	mu     sync.Mutex
	unsure bool
	last   error
}

// Option makes a call note its tries.
func (t *Tries) Option() grpc.CallOption {
	return grpc.OnFinish(func(err error) {
		if err == nil {
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if !Definite(err) {
			t.unsure = true
		}
		switch status.Convert(err).Message() {
		case context.Canceled.Error(), context.DeadlineExceeded.Error():
			// No news: the call was cut short. gRPC says more if it had no connection.
		default:
			t.last = err
		}
	})
}

// Unsure reports whether a try has ended without saying whether it was applied.
// A refusal, such as that of an auth token to renew, is not one.
func (t *Tries) Unsure() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unsure
}

// Explain adds to a context's error why the tries before it failed.
func (t *Tries) Explain(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	return &TriesError{Err: err, Last: t.last}
}

// A TriesError is the end of a call's context, and what stood in its way.
type TriesError struct{ Err, Last error }

func (e *TriesError) Error() string {
	return fmt.Sprintf("%v, the last try ended with %v", e.Err, e.Last)
}

// Unwrap returns the context's error.
func (e *TriesError) Unwrap() error { return e.Err }
