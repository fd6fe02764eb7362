package toolkits

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/guard/redact"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// The bounds of one query.
const (
	sqlTimeout   = 60 * time.Second // a statement is stopped after it
	sqlRows      = 100              // rows of an answer without the argument limit
	sqlMaxRows   = 10_000
	sqlMaxValue  = 16 << 20 // bytes of one value or one row
	sqlMaxText   = 32 << 10 // bytes of a statement
	sqlMaxParams = 1000
	sqlMaxTemp   = 128 << 20 // bytes of temporary files: of all statements on SQLite files, of each on a server
)

// statement is one statement to run.
type statement struct {
	text   string
	params []any // string, bool, jsontext.Value of a number, or nil
	rows   int   // number of rows to read
	bytes  int   // bytes of rows to read
	writes bool  // its changes are kept
}

// result is the result of a statement, and the tool's data.
type result struct {
	Columns   []column           `json:"columns" need:"Name and type of each column."`
	Rows      [][]jsontext.Value `json:"rows" need:"A list of values for each row, in the order of the columns."`
	Truncated bool               `json:"truncated,omitzero" may:"There are more rows."`
	Affected  *int64             `json:"affected,omitzero" may:"How many rows were changed."`

	rows, room int // rows and bytes that may still be added
}

// newResult makes an empty result with the limits of a statement.
func newResult(s statement) *result {
	return &result{Columns: []column{}, Rows: [][]jsontext.Value{}, rows: s.rows, room: s.bytes}
}

// column is one column of a result.
type column struct {
	Name string `json:"name"`
	Type string `json:"type,omitzero"` // as declared, or as the server names it; "" = unknown
}

// add adds a row if it still fits; otherwise it marks the result as truncated.
func (r *result) add(row []jsontext.Value) {
	for _, v := range row {
		r.room -= len(v) + 1
	}
	r.rows--
	if r.Truncated = r.Truncated || r.room < 0 || r.rows < 0; !r.Truncated {
		r.Rows = append(r.Rows, row)
	}
}

func jsonText(text string) jsontext.Value {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return protocol.AppendString(nil, text)
}

// jsonBytes returns bytes as {"base64": …}, so that they differ from a text.
func jsonBytes(b []byte) jsontext.Value {
	return jsontext.Value(`{"base64":"` + base64.StdEncoding.EncodeToString(b) + `"}`)
}

// jsonFloat returns a number, or the text NaN, Infinity or -Infinity, since JSON has no such
// numbers.
func jsonFloat(f float64) jsontext.Value {
	switch {
	case math.IsNaN(f):
		return jsonText("NaN")
	case math.IsInf(f, 1):
		return jsonText("Infinity")
	case math.IsInf(f, -1):
		return jsonText("-Infinity")
	}
	return jsontext.Value(fmt.Appendf(nil, "%v", f))
}

// engine is a database that is opened at its first use. An error that the statement caused is a
// *protocol.Error or *sqlError; the end of ctx stops a running statement.
type engine interface {
	run(ctx context.Context, s statement) (*result, error)
	tables() string   // returns the statement that lists tables and views
	describe() string // returns the statement that lists the columns of the table in its first parameter
	close()
}

// sqlError is the error of a database about a statement.
type sqlError struct{ text, code string }

func (e *sqlError) Error() string { return e.text }

// database is the toolkit sql.
type database struct {
	engine
	name    string
	secrets *redact.Set
	maxOut  int
}

// newSQL makes the toolkit sql. The agent may only name an SQLite file that it may read, see openFile.
func (p *Plugin) newSQL(o SQLOptions, byConfig bool) (*made, error) {
	d := &database{secrets: redact.New(nil), maxOut: p.env.MaxOutputBytes}
	dsn := o.DSN.Reveal()
	if err := p.openEngine(d, dsn, o.readOnly(), byConfig); err != nil {
		return nil, err
	}
	all := []tools.Tool{d.tablesTool(), d.describeTool(), d.queryTool()}
	if !o.readOnly() {
		all = append(all, d.executeTool())
	}
	if file, ok := d.engine.(*sqliteFile); ok { // calls that change the file keep their order
		for i := range all {
			all[i].Files = p.oneFile(&all[i], file.path)
		}
	}
	return newMade(kitSQL, all, d.close), nil
}

// openEngine sets the engine and the name of the database that a connection string names.
func (p *Plugin) openEngine(d *database, dsn string, readOnly, byConfig bool) (err error) {
	switch scheme, rest, _ := strings.Cut(dsn, ":"); {
	case dsn == "":
		return p.wrongSetting("dsn", "is empty; it is an SQLite file (data/app.db), or "+
			"postgres://user:password@host/database", byConfig)
	case scheme == "postgres" || scheme == "postgresql":
		if !byConfig {
			return protocol.Errorf(protocol.CodeToolDenied, "a server is named by the host's config only; the agent "+
				"may name an SQLite file of the workspace")
		}
		d.secrets.AddSecret(dsn)
		d.secrets.AddURL(dsn)
		d.name = "PostgreSQL"
		d.engine, err = newPostgres(dsn)
	case scheme == "sqlite" && !strings.HasPrefix(rest, "//"):
		d.name = "SQLite"
		d.engine, err = p.newSQLite(rest, readOnly, byConfig)
	case !strings.Contains(dsn, "://") && !strings.Contains(dsn, "="):
		d.name = "SQLite"
		d.engine, err = p.newSQLite(dsn, readOnly, byConfig)
	default:
		return p.wrongSetting("dsn", "is neither an SQLite file (data/app.db, sqlite:/srv/app.db) nor a PostgreSQL "+
			"server (postgres://user:password@host/database)", byConfig)
	}
	if told := (*protocol.Error)(nil); err != nil && !errors.As(err, &told) {
		return p.wrongSetting("dsn", d.secrets.Text(err.Error()), byConfig)
	}
	return err
}

// readOnly reports whether the database may not be changed, which is the default.
func (o SQLOptions) readOnly() bool { return o.ReadOnly == nil || *o.ReadOnly }

func (d *database) tablesTool() tools.Tool {
	def := protocol.ToolDefinition{
		Name: "sql_tables", Description: "List the tables and views of the " + d.name + " database.", Idempotent: true,
		Tags: []string{"sql", "database", "tables"},
	}
	return tools.Typed[struct{}, result](def, reads(), func(ctx context.Context, _ *struct{}) (*tools.Outcome, error) {
		return d.answer(ctx, statement{text: d.tables(), rows: sqlMaxRows})
	})
}

func (d *database) describeTool() tools.Tool {
	type args struct {
		Table string `json:"table" need:"A name as sql_tables lists it, as SCHEMA.NAME if it has a schema."`
	}
	def := protocol.ToolDefinition{
		Name: "sql_describe", Description: "List the columns of a table or view of the " + d.name +
			" database: type, default, whether it may be null, keys.",
		Idempotent: true, Tags: []string{"sql", "database", "schema"},
	}
	return tools.Typed[args, result](def, reads(), func(ctx context.Context, in *args) (*tools.Outcome, error) {
		out, err := d.answer(ctx, statement{text: d.describe(), params: []any{in.Table}, rows: sqlMaxRows})
		if err == nil && !out.Failed && len(out.Data.(*result).Rows) == 0 {
			return nil, protocol.Errorf(protocol.CodeToolError, "there is no table or view %.100q; sql_tables lists "+
				"those there are", in.Table)
		}
		return out, err
	})
}

// queryArgs are the arguments of sql_query and sql_execute.
type queryArgs struct {
	SQL    string           `json:"sql" need:"One statement. Put the values into params, and write them in the statement as "`
	Params []jsontext.Value `json:"params" may:"The values, in order: strings, numbers, booleans or null."`
	Limit  *int             `json:"limit" may:"How many rows to get, 1 to 10000. Default: 100."` // of sql_query only
}

func (d *database) queryTool() tools.Tool {
	return d.statementTool(protocol.ToolDefinition{
		Name: "sql_query", Idempotent: true, Tags: []string{"sql", "database", "query", "select"},
		Description: "Run one SELECT (or WITH … SELECT, VALUES) on the " + d.name + " database and get its rows. It " +
			"changes nothing.",
	}, host.ToolDetail{ReadOnly: true})
}

func (d *database) executeTool() tools.Tool {
	t := d.statementTool(protocol.ToolDefinition{
		Name: "sql_execute", Tags: []string{"sql", "database", "insert", "update", "delete"},
		Description: "Run one statement on the " + d.name + " database that changes it, such as INSERT, UPDATE, " +
			"DELETE or CREATE TABLE. It runs in its own transaction.",
	}, host.ToolDetail{Destructive: true})
	t.Def.InputParameters = t.Def.InputParameters[:2]
	return t
}

func (d *database) statementTool(def protocol.ToolDefinition, detail host.ToolDetail) tools.Tool {
	t := tools.Typed[queryArgs, result](def, detail, func(ctx context.Context, in *queryArgs) (*tools.Outcome, error) {
		s, err := in.statement()
		if err != nil {
			return nil, err
		}
		s.writes = detail.Destructive
		return d.answer(ctx, s)
	})
	mark := "?."
	if d.name == "PostgreSQL" {
		mark = "$1, $2."
	}
	t.Def.InputParameters[0].Description += mark
	return t
}

// statement checks the arguments and makes the statement.
func (in *queryArgs) statement() (statement, error) {
	s := statement{text: in.SQL, rows: sqlRows}
	wrong := func(path, message string) (statement, error) {
		return s, protocol.Violation(protocol.FieldError{Path: "/arguments/" + path, Message: message})
	}
	switch {
	case strings.TrimSpace(in.SQL) == "":
		return wrong("sql", "is empty")
	case len(in.SQL) > sqlMaxText || strings.ContainsRune(in.SQL, 0):
		return wrong("sql", fmt.Sprintf("has more than %d bytes, or a zero byte", sqlMaxText))
	case len(in.Params) > sqlMaxParams:
		return wrong("params", fmt.Sprintf("has more than %d values", sqlMaxParams))
	case in.Limit != nil && (*in.Limit < 1 || *in.Limit > sqlMaxRows):
		return wrong("limit", fmt.Sprintf("must be 1 to %d", sqlMaxRows))
	}
	if in.Limit != nil {
		s.rows = *in.Limit
	}
	for i, val := range in.Params {
		param, ok := sqlParam(val)
		if !ok {
			return wrong(fmt.Sprintf("params/%d", i), "must be a text without zero bytes, a number, a boolean or "+
				"null; send a list or an object as the text of its JSON, and bytes as a text that SQL decodes")
		}
		s.params = append(s.params, param)
	}
	return s, nil
}

// sqlParam returns a value as statement.params holds it; false = it cannot be a parameter.
func sqlParam(val jsontext.Value) (any, bool) {
	switch val.Kind() {
	case 'n':
		return nil, true
	case 't', 'f':
		return val.Kind() == 't', true
	case '0':
		return val, true
	case '"':
		text, ok := protocol.Value(val).Str()
		return text, ok && !strings.ContainsRune(text, 0)
	}
	return nil, false
}

// answer runs a statement and makes its outcome. Errors do not show the secrets of the
// connection string.
func (d *database) answer(ctx context.Context, s statement) (*tools.Outcome, error) {
	s.bytes = d.maxOut
	limited, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	res, err := d.run(limited, s)
	var told *protocol.Error
	var refused *sqlError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil:
		return nil, protocol.Errorf(protocol.CodeTimeout, "the statement did not end within %v", sqlTimeout)
	case errors.As(err, &told):
		return nil, err
	case errors.As(err, &refused):
		e := protocol.Errorf(protocol.CodeToolError, "%s", d.secrets.Text(refused.text))
		if refused.code != "" {
			e = e.With("code", refused.code)
		}
		return nil, e
	default:
		return nil, protocol.Errorf(protocol.CodeToolError, "the database cannot be used: %s",
			d.secrets.Text(err.Error()))
	}
	out := &tools.Outcome{Data: res, Truncated: res.Truncated, Summary: protocol.Count(len(res.Rows), "row")}
	if res.Affected != nil {
		out.Summary = protocol.Count(*res.Affected, "row") + " changed"
	}
	return out, nil
}
