// Package members tests locks on etcd clusters whose members are processes of their own: killed, stopped, cut off,
// short of a quorum, and busy with themselves. It has nothing but tests.
package members
