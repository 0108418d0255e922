package main

import (
	"errors"
	"flag"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseOptionsRefuses(t *testing.T) {
	for args, says := range map[string]string{
		"-nope":                                "not defined",
		"extra":                                `"extra"`,
		"-unfenced invoices.csv":               `"invoices.csv"`,
		"-ttl 1s":                              "-ttl 1s",
		"-ttl 2500ms":                          "whole seconds",
		"-ttl 2m":                              "-ttl",
		"-ttl x":                               `-ttl "x": want a duration such as 3s`,
		"-ttl 3":                               `-ttl "3": want a duration such as 3s`,
		"-ttl=":                                `-ttl "": want a duration`,
		"-ttl":                                 "needs an argument: -ttl",
		"-pace 350":                            `-pace "350": want a duration such as 350ms`,
		"-ttl -3s":                             "-ttl -3s",
		"-pace 1ms":                            "-pace",
		"-pace 1h":                             "-pace",
		"-pace 0":                              "-pace",
		"-input=":                              "-input",
		"-ledger=":                             "-ledger",
		"-endpoints=":                          "empty",
		"-endpoints a:1,":                      "empty",
		"-endpoints localhost":                 "missing port",
		"-endpoints localhost:0":               "port",
		"-endpoints localhost:99999":           "port",
		"-endpoints :2379":                     "host:port",
		"-endpoints ftp://h:21":                "http",
		"-endpoints http://h:1/x":              "http",
		"-endpoints http://u:p@h:1":            "http",
		"-endpoints h:1,h:1":                   "twice",
		"-endpoints https://a:1,http://b:1":    "mixed",
		"-endpoints http://[::1:2379":          "missing ']'",
		"-workers 5":                           "not defined",
		"-json=maybe":                          "invalid boolean",
		"-endpoints http://127.0.0.1:2379?x=1": "http",
	} {
		var out strings.Builder
		if o, err := parseOptions(strings.Fields(args), &out); err == nil {
			t.Errorf("%s: accepted as %+v", args, o)
		} else if !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") || out.Len() > 0 {
			t.Errorf("%s: says %q and prints %q, want one line about %q", args, err, out.String(), says)
		}
	}
}

func TestParseOptions(t *testing.T) {
	var out strings.Builder
	got, err := parseOptions(strings.Fields("-unfenced -json -keep -input in.csv -ledger l.db -ttl 5s -pace 1s -endpoints 127.0.0.1:2379,http://[::1]:2380/,etcd:1"), &out)
	if err != nil {
		t.Fatal(err)
	}
	abs, err := filepath.Abs("l.db")
	if err != nil {
		t.Fatal(err)
	}
	want := options{unfenced: true, json: true, keep: true, input: "in.csv", ledger: abs, ttl: 5 * time.Second, pace: time.Second,
		endpoints: []string{"127.0.0.1:2379", "http://[::1]:2380", "etcd:1"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParseOptionsHelps(t *testing.T) {
	for _, arg := range []string{"-h", "-help", "--help"} {
		var out strings.Builder
		if _, err := parseOptions([]string{arg}, &out); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%s: %v, want flag.ErrHelp", arg, err)
		}
		for _, want := range []string{"-ttl duration\n", "-pace duration\n", "-unfenced\n", "Exit codes"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: the help lacks %q:\n%s", arg, want, out.String())
			}
		}
	}
}

func TestParseOptionsDefaults(t *testing.T) {
	var out strings.Builder
	got, err := parseOptions(nil, &out)
	if want := (options{ttl: 3 * time.Second, pace: 350 * time.Millisecond}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
