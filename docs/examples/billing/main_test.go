package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain also plays the program: the test binary starts itself with envProgram set, and the workers it
// starts in turn find their job.
func TestMain(m *testing.M) {
	if _, worker := os.LookupEnv(envWorker); worker || os.Getenv(envProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

const envProgram = "REVFENCE_BILLING_TEST_PROGRAM"
