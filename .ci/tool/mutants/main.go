// Command mutants plants the faults of .ci/mutants.d one at a time and requires that the test named for each fails.
// The sources are not touched: a fault lives in a copy that go test is pointed to with -overlay.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	dir := flag.String("dir", ".ci/mutants.d", "directory with the *.mutant files")
	workers := flag.Int("p", 3, "mutants run at the same time")
	match := flag.String("only", "", "run only the mutants with this text in their name")
	check := flag.Bool("check", false, "only see whether every mutant applies to the sources as they are")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dir, *match, *workers, *check); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, match string, workers int, check bool) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.mutant"))
	if err != nil {
		return err
	}
	var all []mutant
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		m, err := parse(strings.TrimSuffix(filepath.Base(f), ".mutant"), string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		if strings.Contains(m.name, match) {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("no mutants in %s", dir)
	}
	if check {
		return applies(all)
	}
	tmp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	// First the tests as they are: one that fails anyway would kill every mutant. One run for each package will do; a
	// test that does not exist is found out below.
	var sound []mutant
	for _, m := range all {
		if i := slices.IndexFunc(sound, m.sameRun); i >= 0 {
			sound[i].run += "|" + m.run
		} else {
			sound = append(sound, m)
		}
	}
	broken := 0
	for i, r := range each(sound, workers, func(m mutant) result { return m.test(ctx, "") }) {
		if r.verdict != survived {
			fmt.Printf("%s %s without any mutant: %s\n%s\n", sound[i].pkg, sound[i].run, r.verdict, r.output)
			broken++
		}
	}
	if broken > 0 {
		return fmt.Errorf("%d tests do not pass without a mutant", broken)
	}

	bad := 0
	for _, r := range each(all, workers, func(m mutant) result { return m.tried(ctx, tmp) }) {
		if r.verdict != killed {
			bad++
		}
	}
	fmt.Printf("%d mutants, %d killed\n", len(all), len(all)-bad)
	if bad > 0 {
		return fmt.Errorf("%d mutants not killed", bad)
	}
	return nil
}

// tried tries a mutant and says what came of it, as soon as it is known: a run takes long.
func (m mutant) tried(ctx context.Context, tmp string) result {
	start := time.Now()
	r := m.try(ctx, tmp)
	out := ""
	if r.verdict != killed {
		out = r.output + "\n"
	}
	fmt.Printf("%s%-9s %6.1f s  %-32s %s %s\n", out, r.verdict, time.Since(start).Seconds(), m.name, m.pkg, m.run)
	return r
}

// applies says which mutants do not apply any more.
func applies(all []mutant) error {
	bad := 0
	for _, m := range all {
		source, err := os.ReadFile(m.file)
		if err == nil {
			_, err = m.apply(string(source))
		}
		if err != nil {
			bad++
			fmt.Printf("%s: %v\n", m.name, err)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d mutants do not apply", bad, len(all))
	}
	return nil
}

// each applies f to all mutants, some at a time, and returns the results in order.
func each(all []mutant, workers int, f func(mutant) result) []result {
	out := make([]result, len(all))
	slots := make(chan struct{}, max(workers, 1))
	var wg sync.WaitGroup
	for i, m := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			out[i] = f(m)
		})
	}
	wg.Wait()
	return out
}
