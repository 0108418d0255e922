package fencing

import (
	"context"
	"fmt"
	"testing"
)

// Goroutines are per GOMAXPROCS in RunParallel; run with -cpu 1 to have exactly
// the number in the name.
var benchGoroutines = []int{1, 2, 8}

func BenchmarkGateAdvance(b *testing.B) {
	b.Run("one", func(b *testing.B) {
		var g Gate
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		b.ReportAllocs()
		for b.Loop() {
			if err := g.Advance(ctx, 5); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("rising", func(b *testing.B) {
		var g Gate
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		b.ReportAllocs()
		token := None
		for b.Loop() {
			token++
			if err := g.Advance(ctx, token); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, n := range benchGoroutines {
		b.Run(fmt.Sprintf("parallel=%d", n), func(b *testing.B) {
			var g Gate
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			b.SetParallelism(n)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := g.Advance(ctx, 5); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func BenchmarkGateEnter(b *testing.B) {
	b.Run("one", func(b *testing.B) {
		var g Gate
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		b.ReportAllocs()
		for b.Loop() {
			leave, err := g.Enter(ctx, 5)
			if err != nil {
				b.Fatal(err)
			}
			leave()
		}
	})
	for _, n := range benchGoroutines {
		b.Run(fmt.Sprintf("parallel=%d", n), func(b *testing.B) {
			var g Gate
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			b.SetParallelism(n)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					leave, err := g.Enter(ctx, 5)
					if err != nil {
						b.Error(err)
						return
					}
					leave()
				}
			})
		})
	}
}
