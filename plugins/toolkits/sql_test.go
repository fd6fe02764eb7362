package toolkits

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/protocol"
)

// newDB makes an SQLite file in a folder.
func newDB(t testing.TB, dir, name string, statements ...string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	db := must.Get(sql.Open("sqlite", path))(t)
	defer db.Close()
	for _, s := range statements {
		_, err := db.Exec(s)
		must.OK(t, err)
	}
	return path
}

const shop = `CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL DEFAULT 'x', born DATE, at TIMESTAMP, part BLOB, rate REAL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers(id));
CREATE VIEW names AS SELECT name FROM customers;
CREATE VIRTUAL TABLE words USING fts5(text);
INSERT INTO words VALUES ('milk and honey');
INSERT INTO customers VALUES (1, 'Ann', '2001-02-03', '2024-01-02 03:04:05', x'00ff', 1.5), (9007199254740993, 'Bob', NULL, NULL, NULL, 9e999)`

// sqlOf runs a tool of the toolkit sql and returns its data, or its error.
func sqlOf(t testing.TB, p *hosttest.Pair, tool, text string, more string) string {
	t.Helper()
	raw := must.Get(json.Marshal(text))(t)
	m := p.Call(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":%q,"arguments":{"sql":%s%s}}`, tool, raw, more))
	if m.Type != protocol.TypeToolCallResp {
		return string(m.Code) + ": " + m.Get("/message")
	}
	return m.Get("/data/data")
}

func TestSQLite(t *testing.T) {
	dir := t.TempDir()
	for _, mode := range []string{"WAL", "DELETE"} {
		name := strings.ToLower(mode) + ".db"
		newDB(t, dir, name, "PRAGMA journal_mode="+mode, shop)
		p := open(t, dir, Options{})
		configure(p, "sql", `{"dsn":"`+name+`"}`).Has(t, "/status", "ok", "/message", "sql_tables, sql_describe, "+
			"sql_query")
		m := call(t, p, "sql_tables", `{}`)
		assert.That(t, strings.HasPrefix(m.Get("/data/data/rows"),
			`[["customers","table"],["names","view"],["orders","table"],["words","table"]`), "tables: %s", m.Line)
		m = call(t, p, "sql_describe", `{"table":"customers"}`)
		m.Has(t, "/data/data/rows/1", `["name","TEXT",1,"'x'",0,null]`)
		call(t, p, "sql_describe", `{"table":"orders"}`).Has(t, "/data/data/rows/1",
			`["customer","INTEGER",0,null,0,"customers(id)"]`)
		p.Refused(protocol.TypeToolCallReq, `{"tool_name":"sql_describe","arguments":{"table":"nope"}}`,
			protocol.CodeToolError, "sql_tables")
		assert.Equal(t, sqlOf(t, p, "sql_query", "SELECT * FROM customers WHERE id > ? ORDER BY id", `,"params":[0]`),
			`{"columns":[{"name":"id","type":"INTEGER"},{"name":"name","type":"TEXT"},{"name":"born","type":"DATE"},{"name":"at","type":"TIMESTAMP"},{"name":"part","type":"BLOB"},{"name":"rate","type":"REAL"}],`+
				`"rows":[[1,"Ann","2001-02-03","2024-01-02 03:04:05",{"base64":"AP8="},1.5],[9007199254740993,"Bob",null,null,null,"Infinity"]]}`, "rows")
		assert.Equal(t, sqlOf(t, p, "sql_query", "SELECT text FROM words WHERE words MATCH ?; -- done",
			`,"params":["honey"]`),
			`{"columns":[{"name":"text"}],"rows":[["milk and honey"]]}`, "full text")
		m = call(t, p, "sql_query", `{"sql":"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT i FROM n","limit":3}`)
		m.Has(t, "/data/data/rows", "[[1],[2],[3]]", "/data/data/truncated", "true", "/data/truncated", "true")
		p.Handshake(protocol.CapToolkits, protocol.CapTools)
	}
}

// TestSQLiteReplaced: a statement uses the file that is at the path now, as a restore or a rename may
// have replaced it.
func TestSQLiteReplaced(t *testing.T) {
	dir := t.TempDir()
	one := []string{"CREATE TABLE t (n)", "INSERT INTO t VALUES (1)"}
	path := newDB(t, dir, "a.db", one...)
	no := false
	p := open(t, dir, Options{SQL: &SQLOptions{DSN: config.NewSecret(path), ReadOnly: &no}})
	sum := func() string { return sqlOf(t, p, "sql_query", "SELECT sum(n) AS s FROM t", "") }
	want := func(n string) string { return `{"columns":[{"name":"s"}],"rows":[[` + n + `]]}` }
	assert.Equal(t, sum(), want("1"), "the first file")
	must.OK(t, os.Rename(newDB(t, dir, "b.db", "CREATE TABLE t (n)", "INSERT INTO t VALUES (20)"), path))
	assert.Equal(t, sum(), want("20"), "the file that took its place")
	must.OK(t, os.Remove(path))
	assert.Contains(t, sum(), "dsn names a file that is not there", "no file")
	newDB(t, dir, "a.db", one...)
	assert.Contains(t, sqlOf(t, p, "sql_execute", "UPDATE t SET n = n + 6", ""), `"affected":1`, "a write")
	db := must.Get(sql.Open("sqlite", path))(t)
	defer db.Close()
	var n int
	must.OK(t, db.QueryRow("SELECT n FROM t").Scan(&n))
	assert.Equal(t, n, 7, "the file on disk")
}

// TestWallSQLite: a statement can read only the tables of the file, can change nothing, and cannot
// exhaust the host's memory.
func TestWallSQLite(t *testing.T) {
	dir := t.TempDir()
	path := newDB(t, dir, "a.db", shop, "CREATE TABLE big (id INTEGER, data BLOB)", "INSERT INTO big VALUES (7, "+
		"zeroblob(5000000))")
	newDB(t, dir, "b.db", "CREATE TABLE secret (x)")
	before := must.Get(os.ReadFile(path))(t)
	p := open(t, dir, Options{})
	configure(p, "sql", `{"dsn":"sqlite:a.db"}`)
	for _, text := range []string{
		"INSERT INTO orders VALUES (1, 1)", "DELETE FROM customers", "UPDATE customers SET name = 'x'",
		"DROP TABLE orders", "CREATE TABLE t (x)", "CREATE TEMP TABLE t (x)", "REINDEX", "VACUUM", "ANALYZE",
		"WITH x AS (SELECT 1) INSERT INTO orders SELECT * FROM x", "EXPLAIN DELETE FROM orders",
		"SELECT 1; DELETE FROM orders", "SELECT ';' ;; /* ; */ SELECT 2",
		"ATTACH '" + filepath.Join(dir, "b.db") + "' AS b", "DETACH main", "VACUUM INTO '" + filepath.Join(dir,
			"c.db") + "'",
		"PRAGMA query_only = 0", "PRAGMA writable_schema = 1", "PRAGMA journal_mode = DELETE",
		"PRAGMA hard_heap_limit = 1", "PRAGMA temp_store_directory = '/'", "PRAGMA user_version", "BEGIN", "COMMIT",
		"SAVEPOINT a",
		"SELECT load_extension('x')", "SELECT fts3_tokenizer('simple')", "SELECT * FROM pragma_database_list",
		"SELECT zeroblob(1000000000)", "SELECT printf('%1000000000d', 1)", "SELECT randomblob(100000000)",
		"SELECT replace(hex(zeroblob(500000)), '0', '0123456789')", "SELECT data FROM big",
		"SELECT nothing", "", "SELECT ?", "SELECT " + strings.Repeat("1,", 20000) + "1",
	} {
		got := sqlOf(t, p, "sql_query", text, "")
		assert.That(t, strings.HasPrefix(got, "tool_error: ") || strings.HasPrefix(got, "schema_violation: "),
			"%.60s: %.200s", text, got)
		assert.That(t, !strings.Contains(got, dir), "%.60s shows a path: %s", text, got)
	}
	assert.Equal(t, sqlOf(t, p, "sql_query", "SELECT id, length(data) FROM big", ""),
		`{"columns":[{"name":"id","type":"INTEGER"},{"name":"length(data)"}],"rows":[[7,5000000]]}`,
		"a row with a value that is too long to be read")
	assert.That(t, string(must.Get(os.ReadFile(path))(t)) == string(before), "the file was changed")
	_, err := os.Stat(filepath.Join(dir, "c.db"))
	assert.That(t, err != nil, "VACUUM INTO made a file")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"sql_query","arguments":{"sql":"SELECT ?","params":[{"a":1}]}}`,
		protocol.CodeSchemaViolation, "/arguments/params/0")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"sql_query","arguments":{"sql":"SELECT 1","limit":0}}`,
		protocol.CodeSchemaViolation, "/arguments/limit")
}

// TestSQLiteWide: the columns and the bytes of a result are bounded, as a row is in memory as a whole,
// and may be far larger than an answer.
func TestSQLiteWide(t *testing.T) {
	dir := t.TempDir()
	newDB(t, dir, "wide.db", "CREATE TABLE wide (c0"+columns(300)+"); INSERT INTO wide(c0, c299) VALUES (1, 2)")
	p := open(t, dir, Options{})
	configure(p, "sql", `{"dsn":"wide.db"}`).Has(t, "/status", "ok")
	for range 2 { // the connection is used again
		assert.That(t, strings.Contains(sqlOf(t, p, "sql_query", "SELECT * FROM wide", ""), "name 200 at most"),
			"a result of 300 columns")
		got := sqlOf(t, p, "sql_query", "SELECT c0, c299 FROM wide", "")
		assert.That(t, strings.Contains(got, `"rows":[[1,2]]`), "two columns: %s", got)
		got = sqlOf(t, p, "sql_query", "SELECT zeroblob(1000000)"+strings.Repeat(", zeroblob(1000000)", 50), "")
		assert.That(t, strings.Contains(got, `"rows":[],"truncated":true`), "a row of 51 MB: %.300s", got)
	}
}

// columns returns ", c1, c2, …" for the numbers below n.
func columns(n int) (list string) {
	for i := 1; i < n; i++ {
		list += fmt.Sprintf(", c%d", i)
	}
	return list
}

// TestWallSQLiteFiles: the agent can name only files of the workspace, and never the host's own files.
func TestWallSQLiteFiles(t *testing.T) {
	dir, other, state := t.TempDir(), t.TempDir(), t.TempDir()
	newDB(t, other, "other.db", shop)
	own := newDB(t, state, store.FileName, shop)
	must.OK(t, os.Link(own, filepath.Join(dir, "hard.db")))
	must.OK(t, os.Symlink(filepath.Join(other, "other.db"), filepath.Join(dir, "link.db")))
	must.OK(t, os.Symlink(other, filepath.Join(dir, "folder")))
	write(t, dir, "text.db", "no database at all, just words and words and words", 0o644)
	env := testEnv(t, dir)
	env.StateDir = state
	for _, opts := range []SQLOptions{{DSN: config.NewSecret(own)}, {DSN: config.NewSecret("hard.db")}} {
		plugin := must.Get(New("kits", Options{SQL: &opts}, env))(t) // refused when it is used
		args := must.Get(protocol.ParseObject([]byte(`{}`)))(t)
		_, err := plugin.toolsLocked()[0].Call(t.Context(), args, nil)
		must.Fails(t, err, "host itself")
		must.OK(t, plugin.Close(context.Background()))
	}
	p := open(t, dir, Options{})
	for _, dsn := range []string{
		"link.db", "folder/other.db", "../x.db", filepath.Join(other, "other.db"), "gone.db",
		".", "", "sqlite://x", "mysql://u:sk-secret-9@h/d", "host=localhost password=sk-secret-9",
		"postgres://u:sk-secret-9@127.0.0.1/d", "file:a.db?mode=rwc",
	} {
		m := configure(p, "sql", `{"dsn":"`+dsn+`"}`)
		assert.That(t, m.Code == protocol.CodeSchemaViolation || m.Code == protocol.CodeToolDenied, "%s: %s", dsn,
			m.Line)
		assert.That(t, !strings.Contains(string(m.Line), "sk-secret"), "%s is shown: %s", dsn, m.Line)
	}
	configure(p, "sql", `{"dsn":"text.db"}`)
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"sql_tables","arguments":{}}`, protocol.CodeToolError,
		"not a database")
	configure(p, "sql", `{"dsn":"text.db","read_only":false}`).Has(t, "/code", "schema_violation")
}

// TestPostgresParameters: a part of a connection string that would have no effect is refused.
func TestPostgresParameters(t *testing.T) {
	for parameters, says := range map[string]string{
		`?schema=a";DROP`:                  "cannot be read",
		"?sslmode=require;connect_timeout": "cannot be read",
		"?sslmode=%zz":                     "cannot be read",
		"?sslmode=require&sslmode=disable": "twice",
		"#?sslmode=require":                "has a #",
		"?statement_timeout=5":             "statement_timeout, which the toolkit sets itself",
		"?timezone=CET":                    "timezone, which the toolkit sets itself",
		"?search_path=a&sslmode=disable":   "",
		"?application_name=mine":           "",
		"":                                 "",
	} {
		dsn := config.NewSecret("postgres://u:sk-secret-9@127.0.0.1:1/d" + parameters)
		plugin, err := New("kits", Options{SQL: &SQLOptions{DSN: dsn}}, testEnv(t, t.TempDir()))
		if says == "" {
			must.OK(t, err)
			must.OK(t, plugin.Close(context.Background()))
			continue
		}
		assert.That(t, err != nil && strings.Contains(err.Error(), says) && !strings.Contains(err.Error(), "sk-secret"),
			"%s: %v", parameters, err)
	}
}

// TestWallSQLTemporaryFiles: a statement that would fill the disk with temporary files fails, says why, and leaves
// room for the next one.
func TestWallSQLTemporaryFiles(t *testing.T) {
	dir, no := t.TempDir(), false
	p := open(t, dir, Options{SQL: &SQLOptions{DSN: config.NewSecret(newDB(t, dir, "a.db", shop)), ReadOnly: &no}})
	must.Get(tempVFS())(t)
	temps.most = 10 << 20
	defer func() { temps.most = sqlMaxTemp }()
	const rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n LIMIT 2000000), r AS (SELECT i, " +
		"randomblob(500) AS b FROM n) "
	for what, text := range map[string]string{
		"a sort":     rows + "SELECT * FROM r ORDER BY b",
		"a grouping": rows + "SELECT count(*) FROM (SELECT DISTINCT b FROM r)",
		"a union":    rows + "SELECT b FROM r UNION SELECT b FROM r",
		"sorts of parts": rows + ", s AS MATERIALIZED (SELECT * FROM r ORDER BY b LIMIT -1 OFFSET 1) " +
			"SELECT count(*) FROM s a JOIN s b ON a.b = b.b",
	} {
		got := sqlOf(t, p, "sql_query", text, "")
		assert.That(t, strings.HasPrefix(got, "tool_error: ") && strings.Contains(got,
			"may write 128 MiB of temporary files"), "%s: %s", what, got)
		assert.Equal(t, temps.bytes.Load(), 0, "%s: bytes that still count", what)
	}
	got := sqlOf(t, p, "sql_execute", rows+"INSERT INTO orders SELECT i + 10, NULL FROM r ORDER BY b", "")
	assert.Contains(t, got, "temporary files", "an insert of what is sorted")
	got = sqlOf(t, p, "sql_query", strings.Replace(rows, "2000000", "9000", 1)+"SELECT i FROM r ORDER BY b",
		`,"limit":1`)
	assert.Contains(t, got, `"truncated":true`, "a sort that fits")
	assert.Equal(t, sqlOf(t, p, "sql_query", "SELECT count(*) AS n FROM orders", ""),
		`{"columns":[{"name":"n"}],"rows":[[0]]}`)
	assert.Equal(t, temps.bytes.Load(), 0, "bytes that still count")
}

// TestSQLExecute: the config may let the agent change the database, statement by statement.
func TestSQLExecute(t *testing.T) {
	dir := t.TempDir()
	path := newDB(t, dir, "a.db", shop)
	no := false
	p := open(t, dir, Options{SQL: &SQLOptions{DSN: config.NewSecret(path), ReadOnly: &no}})
	assert.Equal(t, sqlOf(t, p, "sql_execute", "INSERT INTO orders VALUES (?, ?), (?, NULL)", `,"params":[1,1,2]`),
		`{"affected":2,"columns":[],"rows":[]}`, "insert")
	for _, text := range []string{
		"INSERT INTO orders VALUES (7, 77)", "ATTACH 'x.db' AS x", "PRAGMA user_version = 7",
		"VACUUM INTO 'x.db'", "BEGIN",
	} {
		got := sqlOf(t, p, "sql_execute", text, "")
		assert.That(t, strings.HasPrefix(got, "tool_error: "), "%s: %s", text, got)
	}
	got := sqlOf(t, p, "sql_query", "DELETE FROM orders", "")
	assert.That(t, strings.HasPrefix(got, "tool_error: "), "sql_query deletes: %s", got)
	assert.Equal(t, sqlOf(t, p, "sql_query", "SELECT count(*) AS n FROM orders", ""),
		`{"columns":[{"name":"n"}],"rows":[[2]]}`, "what is there")
}

// TestSQLiteAnswers: values are returned as they are stored, and each kind of statement returns its
// rows and the number of changed rows.
func TestSQLiteAnswers(t *testing.T) {
	dir, no := t.TempDir(), false
	path := newDB(t, dir, "a.db", `CREATE TABLE d (id INTEGER PRIMARY KEY, day DATE, at DATETIME, ts TIMESTAMP, ok BOOLEAN);
INSERT INTO d VALUES (1, '2024-01-02', '2024-01-02 03:04', '2024-01-02T03:04:05.120+02:00', 1), (2, 'soon', 20240102, '10:30', 0)`)
	p := open(t, dir, Options{SQL: &SQLOptions{DSN: config.NewSecret(path), ReadOnly: &no}})
	const first = `[1,"2024-01-02","2024-01-02 03:04","2024-01-02T03:04:05.120+02:00",1]`
	const both = `"rows":[` + first + `,[2,"soon",20240102,"10:30",0]]`
	for _, text := range []string{
		"SELECT * FROM d", "WITH x AS (SELECT * FROM d) SELECT * FROM x", "SELECT * FROM d UNION ALL SELECT * FROM " +
			"d WHERE 0",
		"SELECT * FROM (SELECT * FROM d ORDER BY id) ORDER BY id;",
	} {
		assert.Contains(t, sqlOf(t, p, "sql_query", text, ""), both, text)
	}
	assert.Contains(t, sqlOf(t, p, "sql_query", "SELECT day, day, max(ts) FROM d", ""),
		`"rows":[["2024-01-02","2024-01-02","2024-01-02T03:04:05.120+02:00"]]`)
	assert.Contains(t, sqlOf(t, p, "sql_query", "VALUES ('2024-01-02 03:04')", ""), `"rows":[["2024-01-02 03:04"]]`)
	for _, c := range []struct{ text, params, want string }{
		{
			"INSERT INTO d (day, at) VALUES (?, ?2), ('2024-02-03', NULL) RETURNING id, day, at",
			`["2024-02-02","2024-02-02 01:02"]`,
			`{"affected":2,"columns":[{"name":"id","type":"INTEGER"},{"name":"day","type":"DATE"},{"name":"at","type":"DATETIME"}],` +
				`"rows":[[3,"2024-02-02","2024-02-02 01:02"],[4,"2024-02-03",null]]}`,
		},
		{"CREATE TABLE log (what TEXT)", `[]`, `{"affected":0,"columns":[],"rows":[]}`},
		{"CREATE TRIGGER t AFTER UPDATE ON d BEGIN INSERT INTO log VALUES ('a;b'); INSERT INTO log VALUES (CASE " +
			"WHEN 1 THEN ';' END); END", `[]`, `{"affected":0,"columns":[],"rows":[]}`},
		{
			"create /* ; */ temp trigger tt after delete on d begin select 1; end ; -- done", `[]`,
			`{"affected":0,"columns":[],"rows":[]}`,
		},
		{"CREATE TRIGGER t2 AFTER INSERT ON log BEGIN SELECT 1; END; DELETE FROM d", `[]`, "more than one statement"},
		{"CREATE TABLE trigger (x); DELETE FROM d; END", `[]`, "more than one statement"},
		{"UPDATE d SET ok = 1 WHERE id > ?", `[2]`, `{"affected":2,"columns":[],"rows":[]}`},
		{"ALTER TABLE log RENAME TO logs", `[]`, `{"affected":0,"columns":[],"rows":[]}`},
		{"CREATE INDEX i ON d (day)", `[]`, `{"affected":0,"columns":[],"rows":[]}`},
		{"CREATE TABLE c AS SELECT * FROM d", `[]`, `{"affected":0,"columns":[],"rows":[]}`},
		{"UPDATE d SET ok = 1 WHERE id > 100", `[]`, `{"affected":0,"columns":[],"rows":[]}`},
		{
			"INSERT INTO d (id) VALUES (1) ON CONFLICT DO NOTHING RETURNING id", `[]`,
			`{"affected":0,"columns":[{"name":"id","type":"INTEGER"}],"rows":[]}`,
		},
		{"REPLACE INTO d (id) VALUES (4)", `[]`, `{"affected":1,"columns":[],"rows":[]}`},
		{"SELECT count(*) AS n FROM logs", `[]`, `{"affected":0,"columns":[{"name":"n"}],"rows":[[4]]}`},
		{"DROP TABLE c", `[]`, `{"affected":0,"columns":[],"rows":[]}`},
		{
			"DELETE FROM d WHERE id > 2 RETURNING id", `[]`,
			`{"affected":2,"columns":[{"name":"id","type":"INTEGER"}],"rows":[[3],[4]]}`,
		},
		{"DELETE FROM logs", `[]`, `{"affected":4,"columns":[],"rows":[]}`},
		{"UPDATE d SET ok = ? WHERE id = ?", `[1]`, "the statement has parameters for 2, params has 1"},
		{"UPDATE d SET ok = ? WHERE id = ?", `[1,2,3]`, "the statement has parameters for 2, params has 3"},
		{"UPDATE d SET ok = ?3 WHERE id = ?1", `[1]`, "the statement has parameters for 3, params has 1"},
		{"UPDATE d SET day = 'a?' /* ? */ -- ?", `[1]`, "the statement has parameters for 0, params has 1"},
		{"UPDATE d SET ok = :ok", `[1]`, "the parameter :ok has a name: write ? or ?1"},
	} {
		got := sqlOf(t, p, "sql_execute", c.text, `,"params":`+c.params)
		assert.That(t, got == c.want || !strings.HasPrefix(c.want, "{") && strings.Contains(got, c.want),
			"%s\n%s\nwant %s", c.text, got, c.want)
	}
	db := must.Get(sql.Open("sqlite", path))(t)
	defer db.Close()
	var n int
	must.OK(t, db.QueryRow("SELECT count(*) FROM d").Scan(&n))
	assert.Equal(t, n, 2, "rows that another connection sees after DELETE … RETURNING")
}

// TestSQLCancel: a statement ends with its request, and the next one runs.
func TestSQLCancel(t *testing.T) {
	dir := t.TempDir()
	newDB(t, dir, "a.db", shop)
	p := open(t, dir, Options{})
	configure(p, "sql", `{"dsn":"a.db"}`)
	const endless = `{"tool_name":"sql_query","arguments":{"sql":"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT `
	id := p.Go(protocol.TypeToolCallReq, endless+`count(*) FROM n"}}`)
	p.Go(protocol.TypeCancel, `{"req_id":"`+id+`"}`)
	assert.Equal(t, p.Answer(id).Code, protocol.CodeCancelled, "the canceled statement")
	var ids []string
	for range 3 { // more than there are connections; each has one row at once, and then searches without end
		ids = append(ids, p.Go(protocol.TypeToolCallReq, endless+`i FROM n WHERE i = 1"},"timeout":1}`))
	}
	for _, id := range ids {
		assert.Equal(t, p.Answer(id).Code, protocol.CodeTimeout, "the statement whose time is up")
	}
	assert.Equal(t, sqlOf(t, p, "sql_query", "SELECT 1 AS n", ""), `{"columns":[{"name":"n"}],"rows":[[1]]}`,
		"the next one")
}
