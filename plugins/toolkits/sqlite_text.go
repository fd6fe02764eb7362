package toolkits

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unsafe"
)

// sqliteText is what is known about the text of a statement before SQLite reads it.
type sqliteText struct {
	several bool   // another statement follows the first one
	params  int    // number of values for the parameters of the first one
	named   string // a parameter that is neither ? nor ?1; "" = none
}

// readSQLite reads a text token by token, by the rules of SQLite for quotes, comments and parameters. Like
// sqlite3_complete it takes CREATE TRIGGER … BEGIN …; END as one statement.
func readSQLite(text string) (t sqliteText) {
	var words []string // the first words of the statement, up to TRIGGER
	trigger, ended, last := false, false, ""
	for len(text) > 0 {
		token, blank := sqliteToken(text)
		text = text[len(token):]
		if blank {
			continue
		}
		if token == ";" {
			ended = ended || !trigger || last == "; END"
			last = ";"
			continue
		}
		if ended {
			t.several = true
			return t
		}
		t.param(token)
		word := strings.ToUpper(token)
		if len(words) < 4 {
			words = append(words, word)
			begin := strings.TrimPrefix(strings.Join(words, " "), "EXPLAIN ")
			trigger = trigger || begin == "CREATE TRIGGER" || begin == "CREATE TEMP TRIGGER" ||
				begin == "CREATE TEMPORARY TRIGGER"
		}
		if last == ";" && word == "END" {
			word = "; END"
		}
		last = word
	}
	return t
}

// param counts a token if it is a parameter: ?N is the value at place N, ? takes the next place. It stores a
// parameter with a name in named, without counting it.
func (t *sqliteText) param(token string) {
	switch {
	case token == "?":
		t.params++
	case token[0] == '?':
		if n, err := strconv.Atoi(token[1:]); err == nil {
			t.params = max(t.params, n)
		}
	case strings.ContainsRune(":@$", rune(token[0])) && len(token) > 1:
		t.named = token
	}
}

// fits checks the parameters against the number of values of the statement.
func (t sqliteText) fits(values int) error {
	switch {
	case t.several:
		return &sqlError{text: "more than one statement: send them one by one"}
	case t.named != "":
		const told = "the parameter %.100s has a name: write ? or ?1, and its value in params"
		return &sqlError{text: fmt.Sprintf(told, t.named)}
	case t.params != values:
		const told = "the number of values does not match: the statement has parameters for %d, params has %d"
		return &sqlError{text: fmt.Sprintf(told, t.params, values)}
	}
	return nil
}

// sqliteToken returns the first token of a text, and whether it is blank: a space or a comment.
func sqliteToken(text string) (token string, blank bool) {
	n := 1
	switch c := text[0]; {
	case strings.IndexByte(" \t\n\f\r", c) >= 0:
		blank = true
	case strings.HasPrefix(text, "--"):
		n, blank = upTo(text, 2, "\n"), true
	case strings.HasPrefix(text, "/*"):
		n, blank = upTo(text, 2, "*/"), true
	case c == '\'' || c == '"' || c == '`': // a doubled quote counts as two texts in a row
		n = upTo(text, 1, string(c))
	case c == '[':
		n = upTo(text, 1, "]")
	case strings.IndexByte("?:@$", c) >= 0 || inSQLiteWord(c):
		for n < len(text) && inSQLiteWord(text[n]) {
			n++
		}
	}
	return text[:n], blank
}

// inSQLiteWord reports whether SQLite takes a byte as part of a name or number.
func inSQLiteWord(c byte) bool {
	return c >= 0x80 || c == '_' || c == '$' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// upTo returns the length of the text up to and including end, which is searched from the index from on.
func upTo(text string, from int, end string) int {
	if i := strings.Index(text[from:], end); i >= 0 {
		return from + i + len(end)
	}
	return len(text)
}

// asStored makes the driver return texts as they are stored. The driver would parse those of columns declared DATE,
// DATETIME or TIMESTAMP, with a time zone that is not in them, and has no option against that. It decides by a list
// of the declared types, which asStored clears.
func asStored(rows driver.Rows) error {
	types := reflect.Indirect(reflect.ValueOf(rows)).FieldByName("decltypes")
	if types.Kind() != reflect.Slice || types.Type().Elem().Kind() != reflect.String {
		return errors.New("this version of the SQLite driver does not give texts as they are stored")
	}
	if types.Len() > 0 {
		clear(unsafe.Slice((*string)(types.UnsafePointer()), types.Len()))
	}
	return nil
}
