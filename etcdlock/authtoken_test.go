package etcdlock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// signedTokens makes a server hand out tokens that end a time after they were made, however busy they are. (Its own kind
// lives on for as long as it is used.)
func signedTokens(t testing.TB, ttl time.Duration) etcdtest.Option {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public := filepath.Join(dir, "private.pem"), filepath.Join(dir, "public.pem")
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, private, "EC PRIVATE KEY", der)
	if der, err = x509.MarshalPKIXPublicKey(&key.PublicKey); err != nil {
		t.Fatal(err)
	}
	writePEM(t, public, "PUBLIC KEY", der)
	return etcdtest.WithEmbedConfig(func(c *embed.Config) {
		c.AuthToken = fmt.Sprintf("jwt,pub-key=%s,priv-key=%s,sign-method=ES256,ttl=%v", public, private, ttl)
	})
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tokenOf returns a token of the user svc.
func tokenOf(t testing.TB, root *clientv3.Client) string {
	t.Helper()
	auth, err := root.Authenticate(testContext(t), "svc", "password")
	if err != nil {
		t.Fatal(err)
	}
	return auth.Token
}

// TestF39AuthTokenExpires: with a user and a password the client fetches another token, and no hold, watch or later lock
// notices.
func TestF39AuthTokenExpires(t *testing.T) {
	t.Parallel()
	const life = 3 * time.Second
	for _, test := range []struct {
		kind  string
		opt   etcdtest.Option
		ttl   time.Duration
		times int
		every time.Duration
	}{
		{"signed", signedTokens(t, life), 4 * time.Second, 10, life},
		// The server's own tokens end when they were idle for as long, and are looked at once a second.
		{"simple", etcdtest.WithEmbedConfig(func(c *embed.Config) { c.AuthTokenTTL = uint(life / time.Second) }), 30 * time.Second, 4, life + 1100*time.Millisecond},
	} {
		t.Run(test.kind, func(t *testing.T) {
			t.Parallel()
			srv, root := secured(t, soon, test.opt)
			stalls := etcdtest.Stalls(t)
			proxy := faultkit.NewProxy(t, srv.Endpoint())
			var calls etcdtest.Counter
			l := newLocker(t, srv.Client(t, etcdtest.AsUser("svc", "password"), etcdtest.Via(proxy.Addr()), etcdtest.Counted(&calls)),
				etcdlock.WithTTL(test.ttl))
			k := mustLock(t, l, "x")
			fetched := calls.Snapshot().Unary["Auth/Authenticate"]
			for i := range test.times {
				pass(test.every)
				live(t, k)
				if err := k.Check(testContext(t)); err != nil {
					t.Errorf("Check: %v", err)
				}
				mustUnlock(t, mustLock(t, l, fmt.Sprint("other", i%2)))
				if i%4 == 1 {
					proxy.Drop()
				}
			}
			if n := calls.Snapshot().Unary["Auth/Authenticate"] - fetched; n < test.times {
				t.Errorf("%d tokens fetched in %d lives of one: they did not expire", n, test.times)
			}
			eventually(t, "a second lock, watched", func() bool { return k.Check(testContext(t)) == nil })
			from := time.Now()
			if _, err := root.Delete(testContext(t), k.Key()); err != nil {
				t.Fatal(err)
			}
			if lost := lostTo(t, k); lost.Reason != etcdlock.ReasonKeyGone {
				t.Errorf("lost: %+v", lost)
			}
			to := time.Now()
			stalls.Judge(t, "told of the deletion", []etcdtest.Sample{{From: from, To: to, Value: to.Sub(from)}}, 1, 500*time.Millisecond)
			mustLostUnlock(t, k)
		})
	}
}

// TestF39StaticTokenExpires: a client that was given a token and no password cannot fetch another. Its lock is lost
// with the next renewal, before anybody else can have it, and what is asked for later is refused.
func TestF39StaticTokenExpires(t *testing.T) {
	t.Parallel()
	// The token ends before the first renewal, which comes before the first read of the key beside its watch.
	const life, ttl = 3 * time.Second, 12 * time.Second
	srv, root := secured(t, ttl+soon, signedTokens(t, life))
	stalls := etcdtest.Stalls(t)
	ctx, cancel := context.WithTimeout(context.Background(), testLimit/2)
	defer cancel()
	from := time.Now()
	token := tokenOf(t, root)
	l := newLocker(t, srv.Client(t, func(c *clientv3.Config) { c.Token = token }), etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "x")
	waiter := newLocker(t, srv.Client(t, func(c *clientv3.Config) { c.Token = token }), etcdlock.WithTTL(ttl))
	next := goLock(ctx, waiter, "x")

	lost := lostTo(t, k)
	told := time.Now()
	if resp, err := root.Get(ctx, k.Key()); err != nil || len(resp.Kvs) != 1 {
		t.Errorf("told after the key had gone: %v, %v", resp, err)
	}
	if lost.Reason != etcdlock.ReasonUnauthenticated || !errors.Is(lost, rpctypes.ErrInvalidAuthToken) {
		t.Errorf("lost: %+v", lost)
	}
	stalls.Judge(t, "loss", []etcdtest.Sample{{From: from, To: told, Value: told.Sub(from)}}, 1, ttl/3+time.Second)
	mustLostUnlock(t, k)

	if r := receive(t, "waiter", next); r.lock != nil || !errors.Is(r.err, rpctypes.ErrInvalidAuthToken) {
		t.Errorf("waiter: %+v", r)
	}
	from = time.Now()
	_, err := l.Lock(ctx, "y")
	wantIs(t, "Lock", err, rpctypes.ErrInvalidAuthToken)
	_, err = l.TryLock(ctx, "y")
	wantIs(t, "TryLock", err, rpctypes.ErrInvalidAuthToken)
	to := time.Now()
	stalls.Judge(t, "refusals", []etcdtest.Sample{{From: from, To: to, Value: to.Sub(from)}}, 1, time.Second)
}

// TestStaticTokenInvalid: a server's own token ends with the password.
func TestStaticTokenInvalid(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	srv, root := secured(t, ttl+soon)
	ctx := testContext(t)
	token := tokenOf(t, root)
	l := newLocker(t, srv.Client(t, func(c *clientv3.Config) { c.Token = token }), etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "x")
	if _, err := root.UserChangePassword(ctx, "svc", "another"); err != nil {
		t.Fatal(err)
	}
	if lost := lostTo(t, k); lost.Reason != etcdlock.ReasonUnauthenticated {
		t.Errorf("lost: %+v", lost)
	}
	mustLostUnlock(t, k)
}

// TestStaticTokenOld: a signed token names the revision of users and roles that it was made at, and is no good at a
// later one.
func TestStaticTokenOld(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	srv, root := secured(t, ttl+soon, signedTokens(t, time.Minute))
	stalls := etcdtest.Stalls(t)
	ctx := testContext(t)
	token := tokenOf(t, root)
	var watches standing
	l := newLocker(t, srv.Client(t, func(c *clientv3.Config) { c.Token = token }, etcdtest.Stream(watches.stream)), etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "x")
	eventually(t, "the watch of the key", func() bool { return watches.count() == 1 })
	from := time.Now()
	if _, err := root.UserAdd(ctx, "somebody", "else"); err != nil {
		t.Fatal(err)
	}
	lost := lostTo(t, k)
	told := time.Now()
	if lost.Reason != etcdlock.ReasonUnauthenticated || !errors.Is(lost, rpctypes.ErrAuthOldRevision) {
		t.Errorf("lost: %+v", lost)
	}
	stalls.Judge(t, "loss", []etcdtest.Sample{{From: from, To: told, Value: told.Sub(from)}}, 1, ttl/3+time.Second)
	mustLostUnlock(t, k)
	from = time.Now()
	_, err := l.Lock(ctx, "y")
	wantIs(t, "Lock", err, rpctypes.ErrAuthOldRevision)
	to := time.Now()
	stalls.Judge(t, "refusal", []etcdtest.Sample{{From: from, To: to, Value: to.Sub(from)}}, 1, time.Second)
}
