//go:build race

package etcdlock_test

// parallel is how many tests run at the same time: under the race detector the servers keep the processors busy.
const parallel = 6

// slowness is by how much everything takes longer under the race detector, about: tests that are about load do that much less.
const slowness = 5
