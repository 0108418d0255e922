package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// TestBadOptions: each is refused with a message that says what is allowed, and etcd is not asked.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var calls etcdtest.Counter
	client := srv.Client(t, etcdtest.Counted(&calls))
	for _, c := range []struct {
		what string
		opts []etcdlock.Option
		text string
	}{
		{"TTL below 2 s", []etcdlock.Option{etcdlock.WithTTL(1999 * time.Millisecond)}, "between 2s and 24h"},
		{"no TTL", []etcdlock.Option{etcdlock.WithTTL(0)}, "between 2s and 24h"},
		{"negative TTL", []etcdlock.Option{etcdlock.WithTTL(-time.Minute)}, "-1m0s"},
		{"TTL above 24 h", []etcdlock.Option{etcdlock.WithTTL(24*time.Hour + 1)}, "between 2s and 24h"},
		{"no margin", []etcdlock.Option{etcdlock.WithSafetyMargin(0)}, "above 0"},
		{"negative margin", []etcdlock.Option{etcdlock.WithSafetyMargin(-1)}, "above 0"},
		{"margin of the TTL", []etcdlock.Option{etcdlock.WithTTL(10 * time.Second), etcdlock.WithSafetyMargin(10 * time.Second)}, "at most half of the TTL, 5s"},
		{"margin above half, given first", []etcdlock.Option{etcdlock.WithSafetyMargin(5*time.Second + 1), etcdlock.WithTTL(10 * time.Second)}, "at most half of the TTL, 5s"},
		{"margin above the default TTL", []etcdlock.Option{etcdlock.WithSafetyMargin(time.Minute)}, "at most half of the TTL, 15s"},
		{"over-long prefix", []etcdlock.Option{etcdlock.WithPrefix(strings.Repeat("p", 1025))}, "at most 1024"},
		{"empty identity", []etcdlock.Option{etcdlock.WithIdentity("")}, "1 to 256"},
		{"over-long identity", []etcdlock.Option{etcdlock.WithIdentity(strings.Repeat("i", 257))}, "1 to 256"},
		{"nil logger", []etcdlock.Option{etcdlock.WithLogger(nil)}, "nil logger"},
		{"nil observer", []etcdlock.Option{etcdlock.WithObserver(nil)}, "nil Observer"},
		{"no lock to a lease", []etcdlock.Option{etcdlock.WithSharedLeases(0)}, "between 1 and"},
		{"too many locks to a lease", []etcdlock.Option{etcdlock.WithSharedLeases(1 << 30)}, "between 1 and"},
		{"nil option", []etcdlock.Option{nil}, "nil Option"},
	} {
		l, err := etcdlock.New(client, c.opts...)
		if l != nil {
			t.Errorf("%s: got a Locker", c.what)
		}
		wantText(t, c.what, err, c.text)
		wantText(t, c.what, err, "etcdlock: ")
	}
	if l, err := etcdlock.New(nil); l != nil || err == nil {
		t.Errorf("nil client: %v, %v", l, err)
	}
	if l, err := etcdlock.New(&clientv3.Client{}); l != nil || err == nil {
		t.Errorf("client without a connection: %v, %v", l, err)
	}
	for _, opts := range [][]etcdlock.Option{
		{etcdlock.WithTTL(2 * time.Second)},
		{etcdlock.WithTTL(24 * time.Hour)},
		{etcdlock.WithTTL(10 * time.Second), etcdlock.WithSafetyMargin(5 * time.Second)},
		{etcdlock.WithSafetyMargin(1)},
		{etcdlock.WithPrefix("")},
		{etcdlock.WithPrefix(strings.Repeat("p", 1024))},
		{etcdlock.WithIdentity(strings.Repeat("i", 256))},
		{etcdlock.WithSharedLeases(1)},
	} {
		newLocker(t, client, opts...)
	}
	if got := calls.Snapshot(); got.Calls() != 0 {
		t.Errorf("etcd was asked: %v", got)
	}
}

// TestBadCalls: what is wrong with a call is said before etcd is asked.
func TestBadCalls(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)))
	ctx := testContext(t)
	cause := errors.New("the caller's reason")
	cancelled, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	late, cancelLate := context.WithDeadline(ctx, time.Unix(0, 0))
	defer cancelLate()

	for _, c := range []struct {
		what  string
		ctx   context.Context
		name  string
		opts  []etcdlock.LockOption
		text  string
		wants []error
	}{
		{"empty name", ctx, "", nil, "empty lock name", nil},
		{"over-long name", ctx, strings.Repeat("n", 1025), nil, "at most 1024", nil},
		{"cancelled context", cancelled, "x", nil, `"x"`, []error{context.Canceled, cause}},
		{"context past its deadline", late, "x", nil, `"x"`, []error{context.DeadlineExceeded}},
		{"nil option", ctx, "x", []etcdlock.LockOption{nil}, "nil LockOption", nil},
		{"nil fence", ctx, "x", []etcdlock.LockOption{etcdlock.WithFences(nil)}, "nil Fence", nil},
		{"no fence timeout", ctx, "x", []etcdlock.LockOption{etcdlock.WithFenceTimeout(0)}, "above 0", nil},
		{"negative fence timeout", ctx, "x", []etcdlock.LockOption{etcdlock.WithFenceTimeout(-1)}, "above 0", nil},
		{"no maximum hold", ctx, "x", []etcdlock.LockOption{etcdlock.WithMaxHold(0)}, "above 0", nil},
		{"negative maximum hold", ctx, "x", []etcdlock.LockOption{etcdlock.WithMaxHold(-1)}, "above 0", nil},
	} {
		for how, take := range map[string]func() (*etcdlock.Lock, error){
			"Lock":    func() (*etcdlock.Lock, error) { return l.Lock(c.ctx, c.name, c.opts...) },
			"TryLock": func() (*etcdlock.Lock, error) { return l.TryLock(c.ctx, c.name, c.opts...) },
			"Do": func() (*etcdlock.Lock, error) {
				return nil, l.Do(c.ctx, c.name, func(context.Context, *etcdlock.Lock) error {
					t.Errorf("%s: Do ran the function", c.what)
					return nil
				}, c.opts...)
			},
		} {
			k, err := take()
			if k != nil {
				t.Errorf("%s: %s gave a lock", c.what, how)
			}
			wantText(t, c.what+": "+how, err, c.text)
			wantIs(t, c.what+": "+how, err, c.wants...)
		}
	}
	if _, err := l.Queue(ctx, ""); err == nil {
		t.Error("Queue of an empty name: no error")
	}
	if got := calls.Snapshot(); got.Calls() != 0 {
		t.Errorf("etcd was asked: %v", got)
	}
}

// TestF40TTLRoundedUp: to whole seconds, as etcd counts.
func TestF40TTLRoundedUp(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	for given, want := range map[time.Duration]int64{
		2 * time.Second:                     2,
		2*time.Second + 1:                   3,
		2500 * time.Millisecond:             3,
		24*time.Hour - 500*time.Millisecond: 24 * 60 * 60,
	} {
		k := mustLock(t, clientLocker(t, srv, etcdlock.WithTTL(given)), fmt.Sprint(given))
		lease := clientv3.LeaseID(keys(t, srv, k.Key()).Kvs[0].Lease)
		ttl, err := srv.Admin().TimeToLive(testContext(t), lease)
		if err != nil || ttl.GrantedTTL != want {
			t.Errorf("TTL %v: granted %+v, %v; want %d s", given, ttl, err, want)
		}
		mustUnlock(t, k)
	}
}

// TestF40GrantedTTLCounts: etcd grants no less than one and a half of its election timeout. What it granted, not what was
// asked for, decides for how long the lock is trusted, and how much of that is margin.
func TestF40GrantedTTLCounts(t *testing.T) {
	t.Parallel()
	const asked, granted = 2 * time.Second, 5 * time.Second
	const longest = granted - (asked/10+100*time.Millisecond)*granted/asked
	srv := startClean(t, soon, etcdtest.WithEmbedConfig(func(c *embed.Config) { c.ElectionMs = 3000 }))
	stalls := etcdtest.Stalls(t)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	l := newLocker(t, srv.Client(t, etcdtest.Via(proxy.Addr())), etcdlock.WithTTL(asked))
	from := time.Now()
	k := mustLock(t, l, "x")
	proxy.BlackHole()
	to := time.Now()
	if ttl, err := srv.Admin().TimeToLive(testContext(t), leaseOf(t, srv, k)); err != nil || ttl.GrantedTTL != int64(granted/time.Second) {
		t.Fatalf("granted %+v, %v; want %v", ttl, err, granted)
	}
	if d := k.Remaining(); d > longest || d < longest-time.Since(from) {
		t.Errorf("%v remaining %v after it was asked for, want %v less that", d, time.Since(from), longest)
	}
	if err := k.Require(asked); err != nil {
		t.Errorf("Require: %v", err)
	}
	var short *etcdlock.RequireError
	if err := k.Require(granted); !errors.As(err, &short) || short.Longest != longest {
		t.Errorf("Require: %#v; the longest is %v", err, longest)
	}
	if lost := lostTo(t, k); lost.Reason != etcdlock.ReasonDeadline {
		t.Errorf("lost: %v", lost)
	}
	told := time.Now()
	if early := longest - told.Sub(from); early > 0 {
		t.Errorf("lost %v too early", early)
	}
	stalls.Judge(t, "loss", []etcdtest.Sample{{From: from, To: told, Value: told.Sub(to)}}, 1, longest+50*time.Millisecond)
	if n := len(keys(t, srv, k.Key()).Kvs); n != 1 {
		t.Errorf("%d keys when the holder was told", n)
	}
	proxy.Heal()
	mustLostUnlock(t, k)
}

// TestF30AnyName: every sequence of bytes is a name, and no name has anything to do with another.
func TestF30AnyName(t *testing.T) {
	srv := startClean(t, soon)
	l := clientLocker(t, srv, etcdlock.WithSharedLeases(1000))
	ctx := testContext(t)
	names := []string{
		"x/", "/x", "//", "..", "./x", "x/..", "x/y", "x/y/z", "%2F", "%252F", "x%2Fy", "x+y", "x y", "\x00x", "x\x00", "\xff\xfe", "é", "e\u0301",
		"日本", "\xe6\x97", strings.Repeat("n", 1024), strings.Repeat("\xff", 1024), strings.Repeat("/", 1024), "x\n",
	}
	for b := range 256 {
		names = append(names, string([]byte{byte(b)}))
	}
	for _, order := range []string{"given", "reverse"} {
		seen := map[string]string{}
		var locks []*etcdlock.Lock
		for _, name := range names {
			k, err := l.TryLock(ctx, name) // all the others are held
			if err != nil {
				t.Fatalf("%s order: %q: %v", order, name, err)
			}
			if k.Name() != name {
				t.Errorf("%q became %q", name, k.Name())
			}
			if other, ok := seen[k.Key()]; ok {
				t.Errorf("%q and %q share the key %q", name, other, k.Key())
			}
			seen[k.Key()] = name
			locks = append(locks, k)
		}
		for _, k := range locks {
			queue, err := l.Queue(ctx, k.Name())
			if err != nil || len(queue) != 1 || queue[0].Key != k.Key() || queue[0].Token != k.Token() {
				t.Errorf("%q: queue %+v, %v; want %q alone", k.Name(), queue, err, k.Key())
			}
		}
		for _, k := range locks {
			mustUnlock(t, k)
		}
		slices.Reverse(names)
	}
}

// TestDefaultPrefixAndKey: where the lock is in etcd.
func TestDefaultPrefixAndKey(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	for name, want := range map[string]string{"nightly": "/revfence/nightly/%x", "a/b": "/revfence/a%%2Fb/%x"} {
		k := mustLock(t, clientLocker(t, srv, etcdlock.WithIdentity("me")), name)
		kv := keys(t, srv, "/revfence/").Kvs[0]
		if want := fmt.Sprintf(want, kv.Lease); string(kv.Key) != want || k.Key() != want {
			t.Errorf("%s: key %q, Key %q, want %q", name, kv.Key, k.Key(), want)
		}
		if string(kv.Value) != "me" {
			t.Errorf("%s: value %q", name, kv.Value)
		}
		mustUnlock(t, k)
	}
}
