// Package restore has the tests of locks on an etcd that is restored from a backup with etcdutl. They are a module of
// their own, since etcdutl brings a command line with it.
package restore
