package tools

import (
	"bytes"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/table"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"golang.org/x/net/html/charset"
)

// form says how content of a type is handled.
type form int

const (
	formUnknown form = iota // look at the content
	formText
	formHTML
	formBinary
)

// formOf returns the form of a media type, which has no parameters and is in lower case.
func formOf(media string) form {
	switch media {
	case "", "application/octet-stream", "binary/octet-stream", "application/unknown":
		return formUnknown
	case "text/html", "application/xhtml+xml":
		return formHTML
	case "application/json", "application/xml", "application/javascript", "application/x-javascript",
		"application/ecmascript",
		"application/yaml", "application/x-yaml", "application/toml", "application/graphql", "application/sql",
		"application/x-sh",
		"application/jsonl", "application/x-ndjson", "application/ndjson", "application/json-seq",
		"application/x-www-form-urlencoded",
		"application/xml-dtd", "application/typescript", "application/x-tex", "application/x-subrip", "message/rfc822":
		return formText
	}
	if strings.HasPrefix(media, "text/") || strings.HasSuffix(media, "+json") || strings.HasSuffix(media, "+xml") ||
		strings.HasSuffix(media, "+yaml") {
		return formText
	}
	return formBinary
}

// toUTF8 decodes text by its byte order mark, the charset of its Content-Type,
// its meta elements, or else by a guess. Bytes that cannot be decoded
// become U+FFFD.
func toUTF8(body []byte, contentType string) string {
	enc, name, certain := charset.DetermineEncoding(body, contentType)
	if name == "utf-8" || !certain && name == "windows-1252" && utf8.Valid(body) {
		text := strings.TrimPrefix(string(body), "\uFEFF")
		return strings.ToValidUTF8(text, "\uFFFD")
	}
	decoded, err := enc.NewDecoder().Bytes(body)
	if err != nil {
		decoded = body
	}
	return strings.TrimPrefix(strings.ToValidUTF8(string(decoded), "\uFFFD"), "\uFEFF")
}

// Markdown turns an HTML page into Markdown with absolute links. A page that
// would take too long to convert, because it is too deep or too large, becomes
// plain text.
func Markdown(page string, at *url.URL) string {
	doc, err := html.Parse(strings.NewReader(page)) // refuses elements nested deeper than 512
	if err != nil {
		return plainText(page)
	}
	w := &pageWalk{base: at}
	w.findBase(doc)
	if !w.walk(doc, 0, 0) {
		return plainText(page)
	}
	text, err := convert(doc, w.tables())
	if err != nil {
		return plainText(page)
	}
	return text
}

// convert runs the converter. It returns a panic of the converter as an error.
func convert(doc *html.Node, tables bool) (text string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("converting HTML: %v", p)
		}
	}()
	plugins := []converter.Plugin{
		base.NewBasePlugin(),
		commonmark.NewCommonmarkPlugin(
			commonmark.WithLinkEmptyHrefBehavior(commonmark.LinkBehaviorSkip),
			commonmark.WithLinkEmptyContentBehavior(commonmark.LinkBehaviorSkip),
			commonmark.WithListEndComment(false)),
	}
	if tables {
		// Aligned cells would all be padded to the width of the widest cell of the column.
		plugins = append(plugins, table.NewTablePlugin(table.WithCellPaddingBehavior(table.CellPaddingBehaviorMinimal)))
	}
	// A model reads the text, not a renderer: escaping would only be noise, and
	// deciding what to escape takes quadratic time on a line of "[".
	conv := converter.NewConverter(converter.WithPlugins(plugins...),
		converter.WithEscapeMode(converter.EscapeModeDisabled))
	for _, name := range []string{"svg", "template", "object", "select", "dialog"} {
		conv.Register.TagType(name, converter.TagTypeRemove, converter.PriorityEarly)
	}
	out, err := conv.ConvertNode(doc)
	return string(bytes.TrimSpace(out)), err
}

// The bounds of a page that is converted. Every level of nesting copies the
// text in it once more; a quote or a list also puts a prefix on each of its lines.
const (
	maxPageCost   = 64 << 20
	maxTableCells = 200_000
	maxSpan       = 1000 // as in browsers
)

// pageWalk walks over a parsed page once: it estimates the cost of the conversion and makes
// links absolute. The parser has bounded the depth of the page.
type pageWalk struct {
	base       *url.URL
	cost       int
	rows, cols int // of all tables: rows with their spans, and the widest row
	rowCells   int // of the current row
}

// walk walks over n and its children, and reports whether the page is still cheap enough to convert. wraps
// is the number of quotes and lists around n.
func (w *pageWalk) walk(n *html.Node, depth, wraps int) bool {
	w.cost += (len(n.Data) + 8) * (1 + depth + wraps*wraps)
	w.visit(n)
	wraps += wrapsLines(n)
	for c := n.FirstChild; c != nil && w.cost <= maxPageCost; c = c.NextSibling {
		w.walk(c, depth+1, wraps)
	}
	return w.cost <= maxPageCost
}

// tables reports whether the tables may be laid out, which fills every row up to the widest one.
func (w *pageWalk) tables() bool { return w.rows*w.cols <= maxTableCells }

func wrapsLines(n *html.Node) int {
	switch n.DataAtom {
	case atom.Blockquote, atom.Ul, atom.Ol:
		return 1
	}
	return 0
}

// findBase applies the page's base element, which is in its head.
func (w *pageWalk) findBase(doc *html.Node) {
	for n := range doc.Descendants() {
		if n.DataAtom == atom.Body {
			return
		}
		if n.DataAtom == atom.Base {
			if a := attr(n, "href"); a != nil {
				if ref, err := url.Parse(strings.TrimSpace(a.Val)); err == nil {
					w.base = w.base.ResolveReference(ref)
				}
			}
			return
		}
	}
}

func (w *pageWalk) visit(n *html.Node) {
	switch n.DataAtom {
	case atom.A:
		w.absolute(n, "href")
	case atom.Img:
		w.absolute(n, "src")
	case atom.Tr:
		w.rows, w.rowCells = w.rows+1, 0
	case atom.Td, atom.Th:
		w.rows += span(n, "rowspan") - 1
		w.rowCells += span(n, "colspan")
		w.cols = max(w.cols, w.rowCells)
	}
}

// span returns a cell's rowspan or colspan, limited to 1 to maxSpan, and writes it back to the cell.
func span(n *html.Node, key string) int {
	a := attr(n, key)
	if a == nil {
		return 1
	}
	v, _ := strconv.Atoi(a.Val) // 0 = not a number
	v = min(max(v, 1), maxSpan)
	a.Val = strconv.Itoa(v)
	return v
}

// absolute makes a link absolute. It drops links that are useless to a reader (scripts, data
// in the link itself).
func (w *pageWalk) absolute(n *html.Node, key string) {
	a := attr(n, key)
	if a == nil {
		return
	}
	ref, err := url.Parse(strings.TrimSpace(a.Val))
	if err != nil {
		return
	}
	switch ref.Scheme {
	case "javascript", "data", "vbscript", "blob":
		a.Val = ""
	default:
		a.Val = w.base.ResolveReference(ref).String()
	}
}

// attr returns an attribute of an element, or nil if it has none of that name.
func attr(n *html.Node, key string) *html.Attribute {
	for i := range n.Attr {
		if n.Attr[i].Key == key {
			return &n.Attr[i]
		}
	}
	return nil
}

// plainText returns the text of a page without building its tree. The time is linear
// in the length of the page.
func plainText(page string) string {
	var b strings.Builder
	z := html.NewTokenizer(strings.NewReader(page))
	hidden := atom.Atom(0) // the element whose content is skipped
	for {
		kind := z.Next()
		if kind == html.ErrorToken {
			return strings.TrimSpace(b.String())
		}
		if kind == html.TextToken {
			if words := strings.Fields(string(z.Text())); hidden == 0 && len(words) > 0 {
				b.WriteString(strings.Join(words, " "))
				b.WriteByte(' ')
			}
			continue
		}
		name, _ := z.TagName()
		tag := atom.Lookup(name)
		switch {
		case kind == html.EndTagToken && tag == hidden:
			hidden = 0
		case kind == html.StartTagToken && hidden == 0 && hides(tag):
			hidden = tag
		case hidden == 0 && breaksLine(tag) && !strings.HasSuffix(b.String(), "\n"):
			b.WriteByte('\n')
		}
	}
}

func hides(tag atom.Atom) bool {
	switch tag {
	case atom.Script, atom.Style, atom.Noscript, atom.Iframe, atom.Textarea, atom.Title, atom.Noembed, atom.Noframes,
		atom.Xmp:
		return true
	}
	return false
}

func breaksLine(tag atom.Atom) bool {
	switch tag {
	case atom.Address, atom.Article, atom.Aside, atom.Blockquote, atom.Br, atom.Dd, atom.Div, atom.Dl, atom.Dt,
		atom.Figure, atom.Footer,
		atom.Form, atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6, atom.Header, atom.Hr, atom.Li, atom.Main,
		atom.Nav, atom.Ol,
		atom.P, atom.Pre, atom.Section, atom.Table, atom.Td, atom.Th, atom.Tr, atom.Ul:
		return true
	}
	return false
}
