//go:build !race

package etcdlock_test

// parallel is how many tests run at the same time: most of them only wait.
const parallel = 12

// slowness is by how much everything takes longer, about: tests that are about load do that much less.
const slowness = 1
