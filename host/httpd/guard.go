package httpd

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Loopback reports whether only this machine can connect to an address, host:port.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && local(host)
}

func local(host string) bool {
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

// guard lets in who has a token, if there are any, and refuses web pages of others: a page may
// have the browser of this machine connect to it under a name of its own.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		preflight := s.share(w, r)
		switch token, isBearer := bearer(r); {
		case s.opts.Loopback && !local(hostname(r.Host)):
			refuse(w, http.StatusForbidden, errors.New("the header Host does not name this machine; use 127.0.0.1 or localhost"))
		case !s.mayConnect(r):
			refuse(w, http.StatusForbidden, errors.New("web pages of this origin may not connect; http.origins of the config names those that may"))
		case preflight: // has no token
			w.WriteHeader(http.StatusNoContent)
		case len(s.opts.Tokens) > 0 && !s.admits(token, isBearer):
			w.Header().Set("WWW-Authenticate", `Bearer realm="a2e"`)
			refuse(w, http.StatusUnauthorized, errors.New("a token is needed: Authorization: Bearer TOKEN, with http.token of the config"))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// share tells the browser of a page of an origin that may connect that the page may read the
// answers. It reports whether that is all that the browser asks.
func (s *Server) share(w http.ResponseWriter, r *http.Request) (preflight bool) {
	origin, h := r.Header.Get("Origin"), w.Header()
	if len(s.opts.Origins) > 0 {
		h.Add("Vary", "Origin")
	}
	if !slices.Contains(s.opts.Origins, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", mcpSession)
	if preflight = r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""; preflight {
		h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
		h.Set("Access-Control-Allow-Headers", strings.Join([]string{"Authorization", "Content-Type", "Last-Event-ID", Header, mcpSession, mcpVersion}, ", "))
	}
	return preflight
}

func (s *Server) admits(token string, isBearer bool) bool {
	_, ok := s.opts.Tokens.Admit(token, "")
	return isBearer && ok
}

func bearer(r *http.Request) (token string, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), strings.EqualFold(scheme, "Bearer")
}

// mayConnect reports whether a request comes from no web page, from one of this server itself
// or from one of the origins that may.
func (s *Server) mayConnect(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		site := r.Header.Get("Sec-Fetch-Site") // browsers leave Origin out of some GETs
		return site == "" || site == "same-origin" || site == "none"
	}
	from, err := url.Parse(origin)
	return slices.Contains(s.opts.Origins, origin) || err == nil && from.Host != "" && strings.EqualFold(from.Host, r.Host)
}

func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return hostport
}
