package etcdlock

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/call"
)

// minServer is the oldest etcd that is known to keep what locks need. Why is in
// whyMinServer: each part of it was an etcd fault that this module can make
// rarer or shorter, not undo.
var minServer = serverVersion{3, 5, 18}

const whyMinServer = "older servers may leave the deletion of a key out of a watch (etcd #18089), revoke live leases when a stuck leader recovers (#15247), " +
	"keep expired ones when authentication is on (#13205), or answer the first renewal of a lease as if it were gone (#13675)"

// A serverVersion is major, minor and patch.
type serverVersion [3]int

func (v serverVersion) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// parseServerVersion reads what a server says of itself. A pre-release counts as
// the release: it is most of it.
func parseServerVersion(s string) (v serverVersion, err error) {
	if _, err := fmt.Sscanf(s, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		return v, fmt.Errorf("server version %q: %w", s, err)
	}
	return v, nil
}

func (v serverVersion) before(w serverVersion) bool {
	for i := range v {
		if v[i] != w[i] {
			return v[i] < w[i]
		}
	}
	return false
}

// checkServers asks every endpoint for its version, in the background, and
// warns of those that are too old. It is advice: an endpoint that does not
// answer is not asked again.
func (l *Locker) checkServers() {
	for _, endpoint := range l.client.Endpoints() {
		l.background(func(ctx context.Context) {
			if err := l.checkServer(ctx, endpoint); err != nil {
				l.log.Debug("server's version not known", zap.String("endpoint", endpoint), zap.Error(err))
			}
		})
	}
}

func (l *Locker) checkServer(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, call.Limit)
	defer cancel()
	defer context.AfterFunc(l.open, cancel)() // Close has better things to wait for
	resp, err := l.client.Status(ctx, endpoint)
	if err != nil {
		return err
	}
	v, err := parseServerVersion(resp.Version)
	if err != nil {
		return err
	}
	if v.before(minServer) {
		l.log.Warn("etcd server too old for dependable locks", zap.String("endpoint", endpoint),
			zap.String("version", resp.Version), zap.Stringer("minimum", minServer), zap.String("why", whyMinServer))
	}
	return nil
}
