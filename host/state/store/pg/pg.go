// Package pg contains what all pgx connections to PostgreSQL share: those of the store, of the queue
// of a fleet and of the SQL toolkit.
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

// Parameters parses the parameters in a PostgreSQL address strictly: net/url and pgx ignore parameters that they cannot
// parse, and so what the user asked for. own are the parameters of a2e itself. An error contains no value.
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

// maxStatements is the maximum number of prepared statements on a connection.
const maxStatements = 200

// Configure sets what an address does not set, and always has statements prepared and cached. connect is the maximum
// time to connect, and cancel is how long the server may take to stop a canceled statement.
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

// Code returns the code of a server error (SQLSTATE, five characters), or "" for other errors.
func Code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}
