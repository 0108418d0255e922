package fencing_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/revfence/revfence/fencing"
)

// A holder that was overtaken while it was paused finds its write refused.
func Example() {
	ledger := fencing.NewGate("ledger")
	balance := 0

	deposit := func(ctx context.Context, amount int) error {
		_, token, ok := fencing.FromContext(ctx)
		if !ok {
			return fencing.ErrNoToken
		}
		leave, err := ledger.Enter(ctx, token)
		if err != nil {
			return err
		}
		defer leave()
		balance += amount // check and write are one step
		return nil
	}

	first := fencing.NewContext(context.Background(), "billing", 41)
	second := fencing.NewContext(context.Background(), "billing", 42)
	fmt.Println(deposit(first, 100))
	fmt.Println(deposit(second, 10))
	fmt.Println(deposit(first, 100)) // back from its pause
	fmt.Println("balance:", balance)
	// Output:
	// <nil>
	// <nil>
	// fencing: stale token: 41 is below the high-water mark 42 of "ledger"
	// balance: 110
}

func ExampleParseToken() {
	token, err := fencing.ParseToken("0000000000000000042")
	fmt.Println(token, err)
	_, err = fencing.ParseToken("-42")
	fmt.Println(errors.Is(err, fencing.ErrNoToken))
	fmt.Println(err)
	// Output:
	// 42 <nil>
	// true
	// fencing: no valid token: not a digit at byte 1: "-42"; want 1 to 19 decimal digits, from 1 to 9223372036854775807
}

func ExampleToken_Padded() {
	fmt.Println(fencing.Token(9).String() < fencing.Token(10).String())
	fmt.Println(fencing.Token(9).Padded() < fencing.Token(10).Padded())
	fmt.Println(fencing.Token(10).Padded())
	// Output:
	// false
	// true
	// 0000000000000000010
}

// With two live holds only the caller knows which token belongs to a write.
func ExampleFromContext() {
	outer := fencing.NewContext(context.Background(), "orders", 41)
	inner := fencing.NewContext(outer, "stock", 57)

	lock, token, ok := fencing.FromContext(outer)
	fmt.Printf("%q %d %v\n", lock, token, ok)
	lock, token, ok = fencing.FromContext(inner)
	fmt.Printf("%q %d %v\n", lock, token, ok)
	// Output:
	// "orders" 41 true
	// "" 0 false
}

func ExampleStaleError() {
	gate := fencing.NewGate("device")
	ctx := context.Background()
	fmt.Println(gate.Advance(ctx, 42))

	err := gate.Advance(ctx, 41)
	if stale, ok := errors.AsType[*fencing.StaleError](err); ok {
		fmt.Println(errors.Is(err, fencing.ErrStale), stale.Token, "<", stale.HighWater)
	}
	// Output:
	// <nil>
	// true 41 < 42
}

// An operator brings back a mark that a bogus token has raised out of reach.
func ExampleGate_Reset() {
	gate := fencing.NewGate("device")
	ctx := context.Background()
	fmt.Println(gate.Advance(ctx, 1<<62)) // the mistake
	fmt.Println(errors.Is(gate.Advance(ctx, 43), fencing.ErrStale))

	fmt.Println(gate.Reset(gate.HighWater(), 42))
	fmt.Println(gate.Advance(ctx, 43), gate.HighWater())
	// Output:
	// <nil>
	// true
	// true
	// <nil> 43
}
