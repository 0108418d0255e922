//go:build !race

package etcdlock_test

// parallel is how many tests run at the same time: most of them only wait.
const parallel = 12
