// Package etcd35 holds nothing: its go.mod names the etcd 3.5.21 server that the tests in the directory above build.
package etcd35
