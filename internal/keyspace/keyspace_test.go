package keyspace_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/revfence/revfence/internal/keyspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// FuzzF30Names: no two different names meet, whatever bytes they have: neither in a queue nor by their marks. Under
// different prefixes they meet only where one prefix lies below a lock of the other, and then the key is known for it.
func FuzzF30Names(f *testing.F) {
	for _, name := range []string{
		"x", "x/y", "x%2Fy", "x%2fy", "%done", "%done/x", "..", ".", "/", "//", "x/", "/x", " ", "é", "\x00", "\xff", "x\n", "1f", "a+b", "a b", "x?y#z",
	} {
		for _, other := range []string{"x", "x/", "x/y", "%done", "1f", "a%20b"} {
			f.Add("/revfence/", name, "/revfence/", other, name+other)
			f.Add("", name, "x/", other, other)
			f.Add("/a/", name, "/a/x/", other, name)
		}
	}
	f.Fuzz(func(t *testing.T, prefix, name, prefix2, name2, slot string) {
		if name == "" || name2 == "" || slot == "" || !usable(prefix) || !usable(prefix2) {
			return
		}
		const lease = "694d7db5d0d1f2c4"
		queue, queue2 := keyspace.Queue(prefix, name), keyspace.Queue(prefix2, name2)
		key, key2, mark2 := queue+lease, queue2+lease, keyspace.Mark(prefix2, name2, slot)
		if keyspace.Below(queue, key) {
			t.Errorf("own key %q is not of its queue", key)
		}
		if prefix != prefix2 {
			for _, k := range []string{key2, mark2} {
				if strings.HasPrefix(k, queue) && !keyspace.Below(queue, k) {
					t.Errorf("key %q of another prefix is taken for one of queue %q", k, queue)
				}
			}
			return
		}
		if in := strings.HasPrefix(key2, queue); in != (name == name2) {
			t.Errorf("key %q in queue %q: %t", key2, queue, in)
		}
		if strings.HasPrefix(mark2, queue) {
			t.Errorf("mark %q in queue %q", mark2, queue)
		}
		for _, other := range [][2]string{{name, slot}, {name2, slot + "x"}, {slot, name2}} {
			same := other == [2]string{name2, slot}
			if (keyspace.Mark(prefix, other[0], other[1]) == mark2) != same {
				t.Errorf("%q and %q have one mark, %q", other, [2]string{name2, slot}, mark2)
			}
		}
	})
}

// usable reports whether a prefix ends in a slash, as etcdlock.WithPrefix advises, and is not refused there.
func usable(prefix string) bool {
	return !strings.Contains(prefix, keyspace.Marks) && (prefix == "" || strings.HasSuffix(prefix, "/"))
}
