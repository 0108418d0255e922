package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	minTTL, maxTTL   = 2 * time.Second, time.Minute // etcdlock takes no shorter one; nobody waits for a longer one
	minPace, maxPace = 20 * time.Millisecond, 10 * time.Second
)

// options is what the command line says.
type options struct {
	unfenced  bool
	json      bool
	input     string
	ledger    string // absolute, or empty: in a temporary directory
	keep      bool
	endpoints []string
	ttl       time.Duration
	pace      time.Duration
}

// parseOptions reads the command line, and checks all that can be checked without touching anything. When
// asked for help it writes that to help, and returns flag.ErrHelp.
func parseOptions(args []string, help io.Writer) (options, error) {
	var o options
	var endpoints, ttl, pace string
	fs := flag.NewFlagSet("billing", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // an error is one line, and the caller's to print
	fs.BoolVar(&o.unfenced, "unfenced", false, "let the ledger take every write, as in the incident")
	fs.BoolVar(&o.json, "json", false, "print one JSON object per event")
	fs.StringVar(&o.input, "input", "", "read the batch from this CSV `file` (default: the one that ships with the example)")
	fs.StringVar(&o.ledger, "ledger", "", "create the ledger as this `file` and keep it (default: in a temporary directory)")
	fs.BoolVar(&o.keep, "keep", false, "keep the temporary ledger")
	fs.StringVar(&endpoints, "endpoints", "", "use etcd at these comma-separated `addresses` (default: an embedded etcd)")
	// Strings, since all that package flag says of a wrong duration is "parse error".
	fs.StringVar(&ttl, "ttl", "3s", "TTL of the lock, a `duration` of whole seconds, 2s to 1m")
	fs.StringVar(&pace, "pace", "350ms", "how long preparing one invoice takes, a `duration` of 20ms to 10s")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printHelp(help, fs)
		}
		return o, err
	}
	fail := func(format string, a ...any) (options, error) { return o, fmt.Errorf(format, a...) }
	var err error
	if o.ttl, err = time.ParseDuration(ttl); err != nil {
		return fail("-ttl %q: want a duration such as 3s", ttl)
	}
	if o.pace, err = time.ParseDuration(pace); err != nil {
		return fail("-pace %q: want a duration such as 350ms", pace)
	}
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	switch {
	case fs.NArg() > 0:
		return fail("unexpected argument %q: there are only flags", fs.Arg(0))
	case o.ttl < minTTL || o.ttl > maxTTL || o.ttl%time.Second != 0:
		return fail("-ttl %v: want whole seconds from %v to %v", o.ttl, minTTL, maxTTL)
	case o.pace < minPace || o.pace > maxPace:
		return fail("-pace %v: want %v to %v", o.pace, minPace, maxPace)
	case set["input"] && o.input == "":
		return fail("-input: the file name is empty")
	case set["ledger"] && o.ledger == "":
		return fail("-ledger: the file name is empty")
	}
	if o.ledger != "" {
		abs, err := filepath.Abs(o.ledger)
		if err != nil {
			return fail("-ledger: %w", err)
		}
		o.ledger = abs
	}
	if set["endpoints"] {
		if o.endpoints, err = parseEndpoints(endpoints); err != nil {
			return fail("-endpoints: %w", err)
		}
	}
	return o, nil
}

func printHelp(w io.Writer, fs *flag.FlagSet) {
	fmt.Fprint(w, "Usage: billing [flags]\n\n"+
		"Three workers run the nightly reconciliation under one lock. The first holder is stopped for longer\n"+
		"than the lock's TTL, and resumed when another one has taken over.\n\n")
	fs.SetOutput(w)
	fs.PrintDefaults()
	fmt.Fprint(w, "\nExit codes: 0 every invoice is in the ledger exactly once; 3 some are there more than once;\n"+
		"2 wrong flags or input; 130 interrupted; 1 anything else.\n")
}

// parseEndpoints reads host:port or http(s)://host:port, comma-separated.
func parseEndpoints(s string) ([]string, error) {
	var out []string
	for _, e := range strings.Split(s, ",") {
		e = strings.TrimSpace(e)
		if e == "" {
			return nil, errors.New("an address is empty")
		}
		hostport := e
		if strings.Contains(e, "://") {
			u, err := url.Parse(e)
			if err != nil {
				return nil, err
			}
			if u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/" {
				return nil, fmt.Errorf("%q: want host:port, http://host:port or https://host:port", e)
			}
			hostport = u.Host
			e = u.Scheme + "://" + u.Host
		}
		host, port, err := net.SplitHostPort(hostport)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", e, err)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
			return nil, fmt.Errorf("%q: want host:port, with a port from 1 to 65535", e)
		}
		if slices.Contains(out, e) {
			return nil, fmt.Errorf("%q is there twice", e)
		}
		out = append(out, e)
	}
	tls := strings.HasPrefix(out[0], "https://")
	for _, e := range out {
		if strings.HasPrefix(e, "https://") != tls {
			return nil, errors.New("addresses with and without https cannot be mixed")
		}
	}
	return out, nil
}
