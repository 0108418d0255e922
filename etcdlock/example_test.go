package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/etcdtest"
)

// exampleEtcd starts an etcd for an example.
func exampleEtcd() (endpoints []string, stop func()) {
	dir, err := os.MkdirTemp("", "revfence")
	if err != nil {
		log.Fatal(err)
	}
	srv, err := etcdtest.Run(dir)
	if err != nil {
		log.Fatal(err)
	}
	return []string{srv.Endpoint()}, func() {
		srv.Close()
		os.RemoveAll(dir)
	}
}

// exampleClient returns a client of an etcd of its own.
func exampleClient() (*clientv3.Client, func()) {
	endpoints, stop := exampleEtcd()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		log.Fatal(err)
	}
	return client, func() {
		client.Close()
		stop()
	}
}

func Example() {
	endpoints, stop := exampleEtcd()
	defer stop()

	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	locker, err := etcdlock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	ledger := fencing.NewGate("ledger") // in memory; a database checks the token in its own transaction
	err = locker.Do(context.Background(), "nightly-billing", func(ctx context.Context, lock *etcdlock.Lock) error {
		leave, err := ledger.Enter(ctx, lock.Token()) // a former holder's token is refused here
		if err != nil {
			return err
		}
		defer leave()
		fmt.Println("billing with", lock.Name(), "held")
		return nil
	}, etcdlock.WithFences(ledger))
	fmt.Println("done:", err)
	// Output:
	// billing with nightly-billing held
	// done: <nil>
}

func ExampleLocker_TryLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	mine, err := etcdlock.New(client, etcdlock.WithIdentity("worker-1"))
	if err != nil {
		log.Fatal(err)
	}
	defer mine.Close(ctx)
	theirs, err := etcdlock.New(client, etcdlock.WithIdentity("worker-2"))
	if err != nil {
		log.Fatal(err)
	}
	defer theirs.Close(ctx)

	lock, err := mine.TryLock(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	_, err = theirs.TryLock(ctx, "report")
	if locked := new(etcdlock.LockedError); errors.As(err, &locked) {
		fmt.Println("held by", locked.Holder)
	}
	// Output: held by worker-1
}

func ExampleLock_Txn() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locker, err := etcdlock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)

	lock, err := locker.Lock(ctx, "config")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	write := func() error {
		_, err := lock.Txn(ctx).Then(clientv3.OpPut("/app/config", "v2")).Commit()
		return err
	}
	fmt.Println("held:", write())

	// An operator deletes the key: the next write is refused by etcd itself.
	if _, err := client.Delete(ctx, lock.Key()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("lost:", errors.Is(write(), etcdlock.ErrLost))
	// Output:
	// held: <nil>
	// lost: true
}

func ExampleLock_Require() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locker, err := etcdlock.New(client, etcdlock.WithTTL(20*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)

	lock, err := locker.Lock(ctx, "export")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)
	fmt.Println(lock.Require(5 * time.Second))
	fmt.Println(lock.Require(time.Minute))
	// Output:
	// <nil>
	// etcdlock: lock "export" can never be trusted for 1m0s: its TTL allows at most 17.9s; choose a longer TTL or shorter steps
}

func ExampleLocker_Once() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	locker, err := etcdlock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)

	for range 3 { // or on three machines
		err := locker.Once(ctx, "nightly-report", "2026-11-29", func(ctx context.Context, lock *etcdlock.Lock) error {
			fmt.Println("sending the report")
			return nil
		}, etcdlock.WithMarkTTL(30*24*time.Hour))
		fmt.Println("done:", err)
	}
	// Output:
	// sending the report
	// done: <nil>
	// done: <nil>
	// done: <nil>
}

// Old and new code on one lock: the prefix is what the old name has before its last slash.
func Example_besideMutex() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	session, err := concurrency.NewSession(client)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "/jobs/eu/nightly")
	locker, err := etcdlock.New(client, etcdlock.WithPrefix("/jobs/eu/"))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)

	if err := mutex.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	_, err = locker.TryLock(ctx, "nightly")
	fmt.Println("new, while old holds:", errors.Is(err, etcdlock.ErrLocked))
	if err := mutex.Unlock(ctx); err != nil {
		log.Fatal(err)
	}

	lock, err := locker.Lock(ctx, "nightly")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)
	fmt.Println("old, while new holds:", errors.Is(mutex.TryLock(ctx), concurrency.ErrLocked))
	// Output:
	// new, while old holds: true
	// old, while new holds: true
}
