// Package versions has the tests of locks on older etcd servers, which are built from the modules below it and run as
// processes. They are modules of their own, outside the workspace: one build cannot hold two versions of etcd.
package versions
