// Package keyspace says which key in etcd stands for what, so that no two names
// ever meet.
package keyspace

import (
	"net/url"
	"strings"
)

// Marks is what the marks of slots that are done start with, below a prefix: no
// name is escaped to it, so they lie outside of every queue.
const Marks = "%done/"

// Queue returns what the keys of a name start with; the rest is a lease. The
// escaped name has no slash, so that no queue lies within another one.
func Queue(prefix, name string) string { return prefix + url.PathEscape(name) + "/" }

// Mark returns the key that says that a slot of a name is done.
func Mark(prefix, name, slot string) string {
	return prefix + Marks + url.PathEscape(name) + "/" + url.PathEscape(slot)
}

// Below reports whether a key that starts with queue belongs to something below
// the name, and not to its queue.
func Below(queue, key string) bool { return strings.Contains(key[len(queue):], "/") }
