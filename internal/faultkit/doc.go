// Package faultkit breaks the path between a client and etcd in controlled ways: a TCP proxy that loses, holds back or
// delays bytes, and gRPC interceptors that make a call's outcome unknown. It is for tests only.
package faultkit
