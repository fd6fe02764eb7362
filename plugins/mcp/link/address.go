package link

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"code.dny.dev/ssrf"
)

// publicOnly refuses to dial what is not on the public internet.
func publicOnly(network, address string, raw syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	metadata := netip.AddrFrom4([4]byte{168, 63, 129, 16}) // of a cloud's virtual machines, although it looks public
	if err != nil || at.Addr().Unmap() == metadata || ssrf.New(ssrf.WithAnyPort()).Safe(network, address, raw) != nil {
		return errors.New("its address is not a public one, which this server's registration does not allow")
	}
	return nil
}

// redirect follows a redirect. The headers of the config stay behind where it leads to
// another host, see RoundTrip.
func (w *web) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxHops {
		return fmt.Errorf("there were more than %d redirects", maxHops)
	}
	req.Header.Del("Referer")
	return nil
}

// own tells whether a URL leads to the host of the config, by no weaker a way.
func (w *web) own(u *url.URL) bool {
	if !strings.EqualFold(u.Hostname(), w.origin.Hostname()) {
		return false
	}
	ours, theirs := port(w.origin), port(u)
	return u.Scheme == w.origin.Scheme && theirs == ours || u.Scheme == "https" && theirs == "443" && ours == "80"
}

// port gives the port that a URL leads to.
func port(u *url.URL) string {
	switch p := u.Port(); {
	case p != "":
		return p
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}
