// Package fencingtest checks that a fence keeps what package fencing promises.
//
// A fence alone protects nothing; what counts is the fence together with a write
// that it guards. So the suite asks for both, as a [Harness] around one small
// value, and [Run] drives it:
//
//	func TestConformance(t *testing.T) {
//		fencingtest.Run(t, func(tb testing.TB) fencingtest.Harness {
//			var (
//				gate  fencing.Gate
//				mu    sync.Mutex
//				value string
//			)
//			return fencingtest.Harness{
//				Fence: &gate,
//				Write: func(ctx context.Context, t fencing.Token, v string) error {
//					leave, err := gate.Enter(ctx, t)
//					if err != nil {
//						return err
//					}
//					defer leave()
//					fencingtest.Gap(ctx)
//					mu.Lock()
//					defer mu.Unlock()
//					value = v
//					return nil
//				},
//				Read: func(ctx context.Context, t fencing.Token) (string, error) {
//					leave, err := gate.Enter(ctx, t)
//					if err != nil {
//						return "", err
//					}
//					defer leave()
//					mu.Lock()
//					defer mu.Unlock()
//					return value, nil
//				},
//			}
//		})
//	}
//
// # What is checked
//
// Which tokens are accepted and which refused, with which error, and that a
// refusal changes neither value nor mark; that Advance, Write and Read all raise
// the mark and all honour it; tokens up to 2^63-1 as exact integers; a mark that
// outlives a reopening; a context already done; and that check and write are one
// step, in two ways. Where the harness calls [Gap] between its check and its write,
// a new holder is let loose at just that moment, which exposes a check that has come
// apart from its write on the first try. Where there is no such moment in reach,
// because the store does both, old and new holders are raced for about a second
// and the value is compared with what was acknowledged.
//
// With Gap called, also that a call which has to wait for another ends with its
// own context.
//
// # What is not checked
//
//   - A narrow gap. The race finds one that is about as wide as a round trip; one
//     of a few instructions may pass unseen where Gap is not called.
//   - Other processes. The suite is one process, so a fence whose mutual exclusion
//     works only inside one, such as a sync.Mutex around a file that several
//     processes write, passes and protects nothing. The exclusion has to be the
//     store's.
//   - A crash. Value and mark written in two steps, which a crash can separate,
//     pass: Reopen comes between calls, never in the middle of one, and shows only
//     that the mark is stored at all. Write both in one transaction.
//   - The store. Whether it keeps what it has acknowledged through a crash or a
//     failover is a matter of the store and its settings.
package fencingtest
