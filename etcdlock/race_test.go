//go:build race

package etcdlock_test

// parallel is how many tests run at the same time: under the race detector the servers keep the processors busy.
const parallel = 6
