// Package etcd36 holds nothing: its go.mod names the etcd 3.6.16 server that the tests in the directory above build.
package etcd36
