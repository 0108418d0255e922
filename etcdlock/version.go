package etcdlock

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/call"
)

// minServers are the oldest etcds that are known to keep what locks need, of
// each minor version that they are looked after in; later ones have it all. Why
// is in whyMinServer: each part of it was an etcd fault that this module can make
// rarer or shorter, not undo.
var minServers = []serverVersion{{3, 5, 28}, {3, 6, 9}, {3, 7, 0}}

const whyMinServer = "older servers may answer a linearizable read from the past after a pause (etcd #20418), and the oldest leave the deletion " +
	"of a key out of a watch (#18089) or revoke live leases when a stuck leader recovers (#15247)"

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

// tooOld returns the minimum that v is below, if it is.
func (v serverVersion) tooOld() (minimum serverVersion, old bool) {
	for i, m := range minServers {
		if v.before(m) && (i == 0 || v[0] == m[0] && v[1] == m[1]) {
			return m, true
		}
	}
	return serverVersion{}, false
}

// versionGrace is for how long Close waits for a server's version.
const versionGrace = 250 * time.Millisecond

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
	// Close does not wait for long; cut off at once, etcd's client would log a failed call.
	defer context.AfterFunc(l.open, func() { time.AfterFunc(versionGrace, cancel) })()
	resp, err := l.client.Status(ctx, endpoint)
	if err != nil {
		return err
	}
	v, err := parseServerVersion(resp.Version)
	if err != nil {
		return err
	}
	if minimum, old := v.tooOld(); old {
		l.log.Warn("etcd server too old for dependable locks", zap.String("endpoint", endpoint),
			zap.String("version", resp.Version), zap.Stringer("minimum", minimum), zap.String("why", whyMinServer))
	}
	return nil
}
