// Package etcdtest runs real etcd servers inside a test process and checks what a test leaves behind in them.
//
// It links the etcd server, so nothing outside tests, benchmarks and example programs may import it.
// Servers run with etcd's own tick and election times: leases have the same minimum TTL of 2 s as in production.
package etcdtest
