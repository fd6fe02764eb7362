// Package pg has what the connections of pgx to PostgreSQL have in common: those of the store, of the queue of a fleet
// and of the SQL toolkit.
package pg

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// Parameters reads the parameters of an address of PostgreSQL strictly: net/url and pgx drop those that they
// cannot read, with them what the user asked for. own are the names that mean something to a2e. An error shows no
// value.
func Parameters(u *url.URL, own ...string) (url.Values, error) {
	all, err := url.ParseQuery(u.RawQuery)
	if err != nil || u.ForceQuery && u.RawQuery == "" {
		return nil, errors.New("has parameters that cannot be read; each should be name=value behind ? or &, with a " +
			"; or another sign within a value as %3B and the like")
	}
	if u.Fragment != "" || strings.HasSuffix(u.String(), "#") {
		return nil, errors.New("has a #, behind which nothing is read; write %23 within a password or a value")
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch i := slices.IndexFunc(own, func(own string) bool { return strings.EqualFold(own, name) }); {
		case i >= 0 && own[i] != name:
			return nil, fmt.Errorf("has the parameter %.32q; should it be %s?", name, own[i])
		case len(all[name]) > 1:
			return nil, fmt.Errorf("has the parameter %.32q twice; one is enough", name)
		case name == "":
			return nil, errors.New("has a parameter without a name; each should be name=value")
		}
	}
	return all, nil
}

// maxStatements bounds the prepared statements of a connection.
const maxStatements = 200

// Configure sets what an address leaves open, and has statements prepared and kept whatever it says. connect is how
// long a connection may take to be made at most, cancel how long the server has to stop a statement that is canceled.
func Configure(c *pgx.ConnConfig, connect, cancel time.Duration) {
	c.DefaultQueryExecMode, c.StatementCacheCapacity = pgx.QueryExecModeCacheStatement, maxStatements
	if c.ConnectTimeout == 0 || c.ConnectTimeout > connect {
		c.ConnectTimeout = connect
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "a2e"
	}
	c.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler { // a canceled statement stops there too
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancel}
	}
}

// Code is the code of an error of the server (SQLSTATE, five characters); "" = it is none.
func Code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}
