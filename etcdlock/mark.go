package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/call"
)

// A mark is the key that says that a slot is done. Its value says by whom and
// when: token, time and identity, with spaces between.
type mark struct {
	locker *Locker
	key    string
	ttl    time.Duration // 0: kept
}

// seen reports whether the mark is there for certain. That it is not may be old.
func (m *mark) seen(ctx context.Context) bool {
	resp, err := m.locker.view.Get(ctx, m.key)
	return err == nil && len(resp.Kvs) > 0
}

// read reports whether the slot is done. It asks with a write to the lock's own
// key, for the reason that Check does.
func (m *mark) read(ctx context.Context, k *Lock) (done bool, err error) {
	resp, _, err := m.commit(ctx, k, func(t clientv3.Txn) clientv3.Txn {
		return t.Then(k.touch(), clientv3.OpGet(m.key))
	})
	if err != nil {
		if lost := k.err(); lost != nil {
			err = lost
		} else if errors.Is(err, ErrUnknown) { // of a read that means nothing
			return false, fmt.Errorf("etcdlock: whether %q is there: %v", m.key, err)
		}
		return false, fmt.Errorf("etcdlock: whether %q is there: %w", m.key, err)
	}
	return len(resp.Responses[1].GetResponseRange().Kvs) > 0, nil
}

// write marks the slot, and reports whether the mark is this hold's.
func (m *mark) write(ctx context.Context, k *Lock) (mine bool, err error) {
	l := m.locker
	if err := k.err(); err != nil {
		return false, err
	}
	if !l.join() { // for the lease of the mark, which Close has to see revoked
		return false, ErrClosed
	}
	defer l.end()
	now := time.Now().UTC().Format(time.RFC3339) //wallclock: for people; nothing reads it.
	value := fmt.Sprintf("%d %s %s", int64(k.token), now, l.identity)
	put := clientv3.OpPut(m.key, value)
	unsure := false
	if m.ttl > 0 {
		id, err := m.lease(ctx)
		if err != nil {
			return false, fmt.Errorf("etcdlock: %q not written, no lease for it: %w", m.key, err)
		}
		put = clientv3.OpPut(m.key, value, clientv3.WithLease(id))
		defer func() {
			if !mine {
				l.background(func(ctx context.Context) { m.giveUp(ctx, k, id, unsure) })
			}
		}()
	}
	free := clientv3.Compare(clientv3.CreateRevision(m.key), "=", 0)
	resp, unsure, err := m.commit(ctx, k, func(t clientv3.Txn) clientv3.Txn {
		return t.If(free).Then(put).Else(clientv3.OpGet(m.key))
	})
	switch {
	case err == nil && resp.Succeeded:
		l.log.Debug("slot marked as done", zap.String("lock", k.name), zap.Int64("token", int64(k.token)), zap.String("mark", m.key))
		return true, nil
	case err == nil:
		// It may be ours: written by an earlier copy whose answer was lost.
		return string(resp.Responses[0].GetResponseRange().Kvs[0].Value) == value, nil
	case unsure && !errors.Is(err, ErrUnknown):
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return false, fmt.Errorf("etcdlock: mark %q: %w", m.key, err)
}

// lease asks for a lease for the mark until ctx ends.
func (m *mark) lease(ctx context.Context) (clientv3.LeaseID, error) {
	l := m.locker
	var pause call.Backoff
	for {
		_, id, err := l.keeper.GrantFixed(ctx, m.ttl)
		if err == nil {
			return id, nil
		}
		if id != 0 {
			l.background(func(ctx context.Context) { l.revoke(ctx, id, m.ttl) })
		}
		if !l.view.Transient(err) || !pause.Wait(ctx) {
			return 0, err
		}
	}
}

// giveUp revokes the lease of a mark that was not written. If that is not known,
// it first waits for the end of the hold, after which no late copy is applied, and
// looks.
func (m *mark) giveUp(ctx context.Context, k *Lock, id clientv3.LeaseID, unsure bool) {
	l := m.locker
	if unsure {
		select {
		case <-k.released:
		case <-ctx.Done():
			return
		}
		var pause call.Backoff
		for {
			resp, err := l.view.Get(ctx, m.key)
			if err == nil {
				if len(resp.Kvs) > 0 && clientv3.LeaseID(resp.Kvs[0].Lease) == id {
					return
				}
				break
			}
			if l.open.Err() != nil || !l.view.Transient(err) || !pause.Wait(ctx) {
				return // may be the lease of a mark
			}
		}
	}
	l.revoke(ctx, id, m.ttl)
}

// commit runs a transaction, any number of times, until it is answered, the
// lock is lost or ctx ends. unsure says that a copy without an answer may have
// been applied.
func (m *mark) commit(ctx context.Context, k *Lock, build func(clientv3.Txn) clientv3.Txn) (resp *clientv3.TxnResponse, unsure bool, err error) {
	var pause call.Backoff
	for {
		resp, err = build(k.Txn(ctx)).Commit()
		if err == nil {
			return resp, unsure, nil
		}
		if errors.Is(err, ErrLost) || errors.Is(err, ErrReleased) {
			return nil, unsure || errors.Is(err, ErrUnknown), err
		}
		unsure = unsure || !call.Definite(err)
		repeated := errors.Is(err, ErrUnknown) // by clientv3, and the lock is held: the next try finds what came of it
		if !repeated && !m.locker.view.Transient(err) || !pause.Wait(ctx) {
			return nil, unsure, err
		}
	}
}
