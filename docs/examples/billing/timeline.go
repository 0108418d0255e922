package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// timeline prints events as they come: a line for people, or a JSON object for scripts.
type timeline struct {
	out    io.Writer
	start  time.Time
	asJSON bool
	color  bool
	err    error // the first failed write: nobody reads us any more
}

func newTimeline(out *os.File, start time.Time, asJSON bool) *timeline {
	return &timeline{out: out, start: start, asJSON: asJSON, color: !asJSON && colorful(out)}
}

// colorful tells whether out is a terminal whose user has not refused colour (no-color.org).
func colorful(out *os.File) bool {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	return isTerminal(out)
}

// isTerminal tells whether somebody watches f. Of the other character devices, the null device is the one
// that output is sent to.
func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}

// now is the time since start on the monotonic clock.
func (t *timeline) now() time.Duration { return time.Since(t.start) }

func (t *timeline) print(e event) {
	if t.err != nil {
		return
	}
	if t.asJSON {
		t.err = encoder(t.out).Encode(e)
		return
	}
	switch e.Kind {
	case kindPreparing:
		return
	case kindSummary:
		_, t.err = io.WriteString(t.out, e.Summary.table(t.paint))
		return
	}
	text := e.Text
	switch e.Kind {
	case kindRefused, kindFailed, kindInterrupted:
		text = t.paint(red, text)
	case kindStopped, kindResumed, kindLost, kindUnmarked, kindDeleted, kindMissed:
		text = t.paint(yellow, text)
	}
	who := t.paint(hue(e.Who), fmt.Sprintf("%-10s", e.Who))
	if e.Kind == kindRun {
		_, t.err = fmt.Fprintf(t.out, "%s\n\n", text)
		return
	}
	_, t.err = fmt.Fprintf(t.out, "%6.2f s  %s  %s\n", e.T, who, text)
}

// The few colours, by their SGR codes.
const (
	plain  = ""
	bold   = "1"
	red    = "1;31"
	green  = "1;32"
	yellow = "33"
)

func hue(who string) string {
	switch {
	case strings.HasSuffix(who, "-1"):
		return "36"
	case strings.HasSuffix(who, "-2"):
		return "35"
	case strings.HasSuffix(who, "-3"):
		return "34"
	}
	return bold
}

func (t *timeline) paint(code, s string) string {
	if !t.color || code == plain {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
