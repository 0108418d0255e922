package etcdlock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	a.key = newKey(t)
	a.cert.Raw = a.sign(t, a.cert, a.key)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(t testing.TB, cert *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// issue makes a certificate for the server at 127.0.0.1 and for clients.
func (a *authority) issue(t testing.TB, name string, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	if usage == x509.ExtKeyUsageServerAuth {
		cert.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	key := newKey(t)
	return tls.Certificate{Certificate: [][]byte{a.sign(t, cert, key)}, PrivateKey: key}
}

// encrypted makes a server listen at a second address as well, where clients have to show a certificate of a. addr is
// that address once the server runs.
func (a *authority) encrypted(t testing.TB) (opt etcdtest.Option, addr func() string) {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	cert := a.issue(t, "server", x509.ExtKeyUsageServerAuth)
	key, err := x509.MarshalECPrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, file("authority.pem"), "CERTIFICATE", a.cert.Raw)
	writePEM(t, file("server.pem"), "CERTIFICATE", cert.Certificate[0])
	writePEM(t, file("server-key.pem"), "EC PRIVATE KEY", key)
	var at string
	return etcdtest.WithEmbedConfig(func(c *embed.Config) {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return
		}
		at = free.Addr().String()
		free.Close()
		c.ListenClientUrls = append(c.ListenClientUrls, url.URL{Scheme: "https", Host: at})
		c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = file("server.pem"), file("server-key.pem")
		c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = file("authority.pem"), true
	}), func() string { return at }
}

// withCertificate makes a client show a certificate and trust the servers of a.
func (a *authority) withCertificate(t testing.TB, cert tls.Certificate) etcdtest.ClientOption {
	t.Helper()
	pool := x509.NewCertPool()
	ca, err := x509.ParseCertificate(a.cert.Raw)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(ca)
	return func(c *clientv3.Config) {
		c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
}

// TestTLS: with client certificates a lock is taken, kept, lost and released as without, and the watchdog's own connections
// show the certificate, and who the user is, as the client's does.
func TestTLS(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		user, name string
		opts       []etcdtest.ClientOption
	}{
		{"by password", "anybody", []etcdtest.ClientOption{etcdtest.AsUser("svc", "password")}},
		{"by certificate", "svc", nil},
	} {
		t.Run(test.user, func(t *testing.T) {
			t.Parallel()
			const ttl = 5 * time.Second
			ca := newAuthority(t)
			listen, addr := ca.encrypted(t)
			srv, root := secured(t, soon, listen)
			var proxies []*faultkit.Proxy
			var addrs []string
			for range 2 {
				p := faultkit.NewProxy(t, addr())
				proxies, addrs = append(proxies, p), append(addrs, "https://"+p.Addr())
			}
			opts := append(test.opts, etcdtest.Via(addrs...), ca.withCertificate(t, ca.issue(t, test.name, x509.ExtKeyUsageClientAuth)))
			l := newLocker(t, srv.Client(t, opts...), etcdlock.WithTTL(ttl))
			k := mustLock(t, l, "x")
			for i, p := range proxies {
				p.BlackHole()
				kept(t, k, 3*ttl/2, fmt.Sprintf("way %d silent", i))
				p.Heal()
				kept(t, k, time.Second, "healed")
			}
			mustUnlock(t, mustLock(t, l, "y"))
			if _, err := root.Delete(testContext(t), k.Key()); err != nil {
				t.Fatal(err)
			}
			if lost := lostTo(t, k); lost.Reason != etcdlock.ReasonKeyGone {
				t.Errorf("lost: %+v", lost)
			}
			mustLostUnlock(t, k)
		})
	}
}

// TestTLSRefused: a client whose certificate the server does not accept, or that does not accept the server's, is told
// so by the end of its context.
func TestTLSRefused(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t), newAuthority(t)
	listen, addr := ca.encrypted(t)
	srv := startClean(t, soon, listen)
	// With TLS 1.3 a client has sent its first request by the time it is refused, and may not get to read why.
	older := func(c *clientv3.Config) { c.TLS.MaxVersion = tls.VersionTLS12 }
	for _, test := range []struct {
		what string
		opts []etcdtest.ClientOption
		says string
	}{
		{"other authority, TLS 1.3", []etcdtest.ClientOption{ca.withCertificate(t, other.issue(t, "svc", x509.ExtKeyUsageClientAuth))}, "rpc error: code = "},
		{"other authority, TLS 1.2", []etcdtest.ClientOption{ca.withCertificate(t, other.issue(t, "svc", x509.ExtKeyUsageClientAuth)), older}, "tls: "},
		{"none, TLS 1.2", []etcdtest.ClientOption{ca.withCertificate(t, tls.Certificate{}), older}, "tls: "},
		{"server not trusted", []etcdtest.ClientOption{other.withCertificate(t, ca.issue(t, "svc", x509.ExtKeyUsageClientAuth))}, "x509: certificate signed by unknown authority"},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			const limit = 2 * time.Second // less than a single call may take
			l := newLocker(t, srv.Client(t, append(test.opts, etcdtest.Via("https://"+addr()))...))
			for what, take := range map[string]func(context.Context) (*etcdlock.Lock, error){
				"Lock":    func(ctx context.Context) (*etcdlock.Lock, error) { return l.Lock(ctx, "x") },
				"TryLock": func(ctx context.Context) (*etcdlock.Lock, error) { return l.TryLock(ctx, "x") },
			} {
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				defer cancel()
				from := time.Now()
				_, err := take(ctx)
				if took := time.Since(from); took > limit+time.Second {
					t.Errorf("%s: %v for a context of %v", what, took, limit)
				}
				wantIs(t, what, err, context.DeadlineExceeded)
				wantText(t, what, err, "the last error was ")
				wantText(t, what, err, test.says)
			}
		})
	}
}
