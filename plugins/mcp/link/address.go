package link

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// redirect follows a redirect. The headers of the config stay behind where it leads to
// another host, see RoundTrip.
func (w *web) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxHops {
		return fmt.Errorf("there were more than %d redirects", maxHops)
	}
	if w.guard != nil && via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme == "http" {
		return errors.New("a redirect from https to plain http is not followed")
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
