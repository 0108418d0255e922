// Package faultkit breaks what lies between a client and etcd, and both ends, in controlled ways: a TCP proxy that loses,
// holds back, delays or cuts bytes, gRPC interceptors that make a call's outcome unknown, and processes, members of an etcd
// cluster among them, that can be stopped, killed and started again. It links the etcd server, and is for tests only.
package faultkit
