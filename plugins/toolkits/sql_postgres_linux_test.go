package toolkits

import (
	"fmt"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/host/hosttest/postgres"
	"a2e/protocol"
)

// TestPostgres has all tests of the toolkit sql on PostgreSQL, so that they share one server.
func TestPostgres(t *testing.T) {
	server := postgres.Start(t)
	server.Exec(t, `CREATE ROLE reader LOGIN PASSWORD 'pw-of-the-reader'; CREATE ROLE writer LOGIN;
		CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL DEFAULT 'x', part bytea, rate float8, price numeric(30,5), at timestamptz, born date, more jsonb, tags text[], ok bool);
		CREATE TABLE orders (id bigint PRIMARY KEY, customer int REFERENCES customers);
		COMMENT ON TABLE orders IS 'what was bought'; CREATE VIEW names AS SELECT name
		FROM customers; CREATE SEQUENCE counter;
		INSERT INTO customers VALUES (1, 'Ann', '\x00ff', 'NaN', 12345678901234567890.5, '2024-01-02 03:04:05.6+02', '2001-02-03', '{"a": [1]}', '{x,y}', true);
		CREATE FUNCTION change() RETURNS int LANGUAGE sql AS 'DELETE FROM customers RETURNING 1';
		GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader; GRANT ALL ON ALL TABLES IN SCHEMA public TO writer; GRANT ALL ON SEQUENCE counter TO reader`)
	db := func(t *testing.T, o SQLOptions) *hosttest.Pair {
		plugin := newPlugin(t, t.TempDir(), Options{SQL: &o})
		p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
		p.Handshake(protocol.CapToolkits, protocol.CapTools)
		return p
	}
	dsn := strings.Replace(server.URL("reader"), "reader@", "reader:pw-of-the-reader@", 1)
	p := db(t, SQLOptions{DSN: config.NewSecret(dsn)})
	t.Run("values", func(t *testing.T) { postgresValues(t, p) })
	t.Run("walls", func(t *testing.T) { postgresWalls(t, p, server) })
	t.Run("temporary files", func(t *testing.T) {
		const sorted = "SELECT i, repeat(i::text, 200) AS t FROM generate_series(1, 2000000) i ORDER BY t"
		server.Exec(t, "ALTER ROLE reader SET temp_file_limit = '1MB'")
		limited := db(t, SQLOptions{DSN: config.NewSecret(dsn)})
		assert.Contains(t, sqlOf(t, limited, "sql_query", sorted, ""), "sorts, groups and joins write temporary files")
		server.Exec(t, "ALTER ROLE reader RESET temp_file_limit; GRANT SET ON PARAMETER temp_file_limit TO writer")
		const limit = "SELECT current_setting('temp_file_limit') AS bytes"
		able := db(t, SQLOptions{DSN: config.NewSecret(server.URL("writer"))})
		assert.Contains(t, sqlOf(t, able, "sql_query", limit, ""), `[["128MB"]]`, "a role that may set the limit")
		assert.Contains(t, sqlOf(t, p, "sql_query", limit, ""), `[["-1"]]`, "a role that may not")
	})
	t.Run("cancel", func(t *testing.T) { postgresCancel(t, p, server) })
	t.Run("writes", func(t *testing.T) {
		no := false
		p := db(t, SQLOptions{DSN: config.NewSecret(server.URL("writer")), ReadOnly: &no})
		assert.Equal(t, sqlOf(t, p, "sql_execute", "INSERT INTO orders VALUES ($1, $2), ($3, NULL) RETURNING id",
			`,"params":[1,1,9007199254740993]`),
			`{"affected":2,"columns":[{"name":"id","type":"bigint"}],"rows":[[1],[9007199254740993]]}`, "insert")
		for _, text := range []string{
			"INSERT INTO orders VALUES (7, 77)", "DELETE FROM orders; COMMIT", "VACUUM",
			"COPY orders FROM STDIN", "/* a /* b */ */ -- c\n;copy\torders FROM '/etc/passwd'", "COPY orders TO STDOUT",
			"(COPY orders FROM STDIN)", "DO $$BEGIN COPY orders FROM STDIN; END$$",
		} {
			got := sqlOf(t, p, "sql_execute", text, "")
			assert.That(t, strings.HasPrefix(got, "tool_error: "), "%s: %s", text, got)
		}
		root := db(t, SQLOptions{DSN: config.NewSecret(server.URL(postgres.Superuser)), ReadOnly: &no})
		reads := db(t, SQLOptions{DSN: config.NewSecret(server.URL("writer"))}) // a role that may write
		for _, text := range []string{"SELECT 1; COMMIT; DELETE FROM orders", "SELECT 1; ROLLBACK; BEGIN; DELETE " +
			"FROM orders; COMMIT"} {
			assert.Contains(t, sqlOf(t, reads, "sql_query", text, ""), "multiple commands")
		}
		assert.Contains(t, sqlOf(t, root, "sql_execute", "SELECT pg_read_file('/etc/passwd')", ""), "superuser")
		assert.Equal(t, server.Exec(t, "SELECT count(*) FROM orders"), "2", "orders")
	})
	t.Run("wrong", func(t *testing.T) {
		for role, part := range map[string]string{postgres.Superuser: "superuser", "nobody-there": "does not exist"} {
			p := db(t, SQLOptions{DSN: config.NewSecret(server.URL(role))})
			p.Refused(protocol.TypeToolCallReq, `{"tool_name":"sql_tables","arguments":{}}`, protocol.CodeToolError,
				part)
		}
		_, err := New("kits", Options{SQL: &SQLOptions{DSN: config.NewSecret("postgres://u:sk-secret-9@h:port/d")}},
			testEnv(t, t.TempDir()))
		assert.That(t, err != nil && strings.Contains(err.Error(), "dsn is not a connection string") &&
			!strings.Contains(err.Error(), "sk-secret"), "%v", err)
	})
}

func postgresValues(t *testing.T, p *hosttest.Pair) {
	call(t, p, "sql_tables", `{}`).Has(t, "/data/data/rows",
		`[["public","customers","table",null],["public","names","view",null],["public","orders","table","what was bought"]]`)
	call(t, p, "sql_describe", `{"table":"public.orders"}`).Has(t, "/data/data/rows",
		`[["id","bigint",true,null,true,null,null],["customer","integer",false,null,false,"FOREIGN KEY (customer) REFERENCES customers(id)",null]]`)
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"sql_describe","arguments":{"table":"nope"}}`,
		protocol.CodeToolError, "sql_tables")
	got := sqlOf(t, p, "sql_query", "SELECT * FROM customers WHERE name = $1 AND id = $2 AND ok = $3 -- done",
		`,"params":["Ann",1,true]`)
	_, rows, _ := strings.Cut(got, `"rows":`)
	assert.Equal(t, rows, `[[1,"Ann",{"base64":"AP8="},"NaN","12345678901234567890.50000","2024-01-02T01:04:05.6Z","2001-02-03",{"a":[1]},"{x,y}",true]]}`, "a row")
	assert.That(t, strings.Contains(got, `{"name":"price","type":"numeric(30,5)"}`), "columns: %s", got)
	for text, want := range map[string]string{
		"SELECT generate_series(1, 1000000) AS n":                    `[[1],[2],[3]],"truncated":true}`,
		"VALUES (1), (2)":                                            `[[1],[2]]}`,
		"WITH x AS (SELECT 7 AS n) TABLE x;":                         `[[7]]}`,
		"SELECT 'infinity'::timestamptz, 1e300::float8, 2::smallint": `[["infinity",1e+300,2]]}`,
	} {
		_, rows, _ := strings.Cut(sqlOf(t, p, "sql_query", text, `,"limit":3`), `"rows":`)
		assert.Equal(t, rows, want, "%s", text)
	}
	m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"sql_query","arguments":{"sql":"SELECT repeat('x', 300000) FROM generate_series(1, 1000)","limit":1000}}`)
	assert.That(t, m.Get("/data/truncated") == "true" && len(m.Line) < 1<<20 && m.Get("/data/data/rows/2/0") != "",
		"rows that are too long: %.200s", m.Line)
	got = sqlOf(t, p, "sql_query", "SELECT repeat('x', 20000000)", "")
	assert.That(t, strings.HasPrefix(got, "tool_error: a row has 2000000"), "a huge row: %.200s", got)
}

// postgresWalls: the server itself refuses everything but reading, and a statement leaves nothing
// behind.
func postgresWalls(t *testing.T, p *hosttest.Pair, server *postgres.Server) {
	for _, text := range []string{
		"DELETE FROM customers", "WITH x AS (DELETE FROM customers RETURNING 1) SELECT * FROM x", "SELECT change()",
		"SELECT nextval('counter')", "SELECT * INTO t FROM customers", "SELECT 1 FROM customers FOR UPDATE",
		"CREATE TABLE t (n int)", "CREATE TEMP TABLE t (n int)", "DROP TABLE customers", "TRUNCATE customers",
		"COMMIT; DROP TABLE customers", "SELECT 1; DROP TABLE customers", "COMMIT", "ROLLBACK", "BEGIN",
		"CALL change()",
		"SET TRANSACTION READ WRITE", "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "RESET ALL",
		"SET ROLE postgres", "LISTEN x", "PREPARE x AS SELECT 1", "LOCK customers", "EXPLAIN ANALYZE DELETE " +
			"FROM customers",
		"COPY customers TO '/tmp/x'", "COPY customers TO PROGRAM 'id'", "COPY (SELECT 1) TO STDOUT",
		"COPY customers FROM PROGRAM 'id'", "DO $$ BEGIN DELETE FROM customers; END $$", "CREATE EXTENSION dblink",
		"LOAD 'x'", "VACUUM",
		"SELECT pg_read_file('/etc/passwd')", "SELECT pg_ls_dir('/')", "SELECT lo_import('/etc/passwd')",
		"SELECT lo_export(1, '/tmp/x')", "SELECT set_config('transaction_read_only', 'off', true), change()",
		"SELECT set_config('role', 'postgres', false)", "SELECT set_config('session_authorization', 'postgres', false)",
		"SELECT pg_reload_conf()", "1", "", "SELECT $1", ") SELECT 1", "SELECT 1 WITH HOLD",
		"SELECT 1/0", "SELECT query_to_xml('DELETE FROM customers', true, true, '')",
	} {
		got := sqlOf(t, p, "sql_query", text, "")
		assert.That(t, strings.HasPrefix(got, "tool_error: ") || strings.HasPrefix(got, "schema_violation: "), "%s: %s",
			text, got)
		assert.That(t, !strings.Contains(got, "pw-of-the-reader"), "%s shows the password: %s", text, got)
	}
	assert.Equal(t, server.Exec(t, "SELECT count(*) FROM customers"), "1", "customers")
	// settings and locks end with their statement
	sqlOf(t, p, "sql_query", "SELECT set_config('default_transaction_read_only', 'off', false), "+
		"set_config('DateStyle', 'SQL', false), pg_advisory_lock(7)", "")
	got := sqlOf(t, p, "sql_query", "SELECT date '2001-02-03', (SELECT count(*) FROM pg_locks WHERE locktype = "+
		"'advisory') AS locks", "")
	assert.That(t, strings.Contains(got, `[["2001-02-03",0]]`), "the next statement: %s", got)
}

func postgresCancel(t *testing.T, p *hosttest.Pair, server *postgres.Server) {
	running := func(n int) func() bool {
		return func() bool {
			return server.Exec(t, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state = "+
				"'active'") == fmt.Sprint(n)
		}
	}
	id := p.Go(protocol.TypeToolCallReq, `{"tool_name":"sql_query","arguments":{"sql":"SELECT pg_sleep(1000)"}}`)
	poll.Eventually(t, "the statement runs", running(1))
	p.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	must.Equal(t, p.Answer(id).Code, protocol.CodeCancelled, "the canceled statement")
	poll.Eventually(t, "the statement has ended", running(0))
	assert.That(t, strings.Contains(sqlOf(t, p, "sql_query", "SELECT 7", ""), "[[7]]"), "the next statement")
}
