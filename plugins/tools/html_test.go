package tools

import (
	"net/url"
	"strings"
	"testing"
)

func testPage(t *testing.T) *url.URL {
	t.Helper()
	u, err := url.Parse("https://example.com/docs/a/page.html?x=1")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestMarkdown checks what the converter is set up to do.
func TestMarkdown(t *testing.T) {
	for _, c := range []struct{ name, page, want string }{
		{"headings", "<h1>A</h1><h3>B</h3><p>c", "# A\n\n### B\n\nc"},
		{"hidden", "<style>x</style><script>y</script><noscript>n</noscript><svg><text>s</text></svg><template>t</template><!--c--><p>z", "z"},
		{"relative link", `<a href="../b?q=1#f">b</a>`, "[b](https://example.com/docs/b?q=1#f)"},
		{"rooted link", `<a href="/b">b</a>`, "[b](https://example.com/b)"},
		{"other host", `<a href="//other.example/b">b</a>`, "[b](https://other.example/b)"},
		{"absolute link", `<a href="http://other.example/">b</a>`, "[b](http://other.example/)"},
		{"fragment", `<a href="#f">b</a>`, "[b](https://example.com/docs/a/page.html?x=1#f)"},
		{"base", `<base href="/root/"><a href="b">b</a>`, "[b](https://example.com/root/b)"},
		{"script link", `<a href="javascript:x()">b</a>`, "b"},
		{"image", `<img src="i.png" alt="I">`, "![I](https://example.com/docs/a/i.png)"},
		{"data image", `<p>a<img src="data:image/png;base64,AAAA" alt="I">b`, "ab"},
		{"list", "<ul><li>a<li>b<ul><li>c</ul></ul>", "- a\n- b\n  \n  - c"},
		{"code", "<pre><code class=language-go>x := 1\n</code></pre>", "```go\nx := 1\n```"},
		{"table", "<table><tr><th>a<th>b<tr><td>1<td>a long one</table>", "| a | b |\n|---|---|\n| 1 | a long one |"},
		{"no escapes", "<p>1. [x] *y* a_b", "1. [x] *y* a_b"},
	} {
		if got := markdown(c.page, testPage(t)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestMarkdownHostile feeds pages that are built to take very long, to need very
// much memory or to overflow the stack. Each gives its text all the same, in an
// answer not much longer than the page; go test's own limit is the clock.
func TestMarkdownHostile(t *testing.T) {
	const size = 60_000
	rep := func(s string) string { return strings.Repeat(s, size/len(s)) }
	pages := map[string]string{
		"table of wide rows":  "<table><tr>" + strings.Repeat("<td>", 5000) + strings.Repeat("<tr><td>", 5000) + "needle</table>",
		"wide spans":          "<table>" + strings.Repeat("<tr><td colspan=1000 rowspan=1000>x", 1000) + "needle</table>",
		"huge span":           "<table><tr><td colspan=999999999 rowspan=999999999>needle</table>",
		"wide cell":           "<table><tr><td>" + rep("a") + strings.Repeat("<tr><td>b", 2000) + "<tr><td>needle</table>",
		"quotes around lines": strings.Repeat("<blockquote>", 100) + rep("a<br>") + "needle",
		"lists around lines":  strings.Repeat("<ul><li>", 100) + rep("a<br>") + "needle",
		"tables in tables":    strings.Repeat("<table><tr><td>", 100) + rep("a<br>") + "needle",
		"one attribute":       `<p title="` + rep("a") + `">needle`,
		"many attributes":     "<p " + rep("a=b ") + ">needle",
		"open tag":            "needle" + "<p " + rep("a=b "),
		"text area":           "needle<textarea>" + rep("</b>"),
	}
	for _, s := range []string{
		"<div>", "<b>", "<i>", "<p>", "<a href=x>", "<blockquote>", "<ul><li>", "<ol><li>", "<table>", "<table><tr><td>", "<font>", "<svg>", "<math>", "<span>",
		"<dl><dd>", "<button>", "<nobr>", "<ruby><rt>", "<select>", "<option>", "<template>", "<form>", "</p>", "</div>", "<h1>", "<pre>", "<code>", "<br>", "<img src=x>",
		"[", "![", "(", "*", "_", "`", "~", "#", "\n- ", "1. ", "\\", "&", "&amp;", "&#", "<", "<!", "<!--", "\u00a0", " ", "\n", "a\n\n",
	} {
		pages["many "+s] = "<p>needle</p>" + rep(s)
	}
	for name, page := range pages {
		t.Run(name, func(t *testing.T) {
			got := markdown(page, testPage(t))
			if !strings.Contains(got, "needle") {
				t.Errorf("the text is lost; got %q…", clip(got, 100))
			}
			if len(got) > 30*len(page) {
				t.Errorf("%d bytes became %d", len(page), len(got))
			}
			if text := plainText(page); !strings.Contains(text, "needle") || len(text) > 2*len(page) {
				t.Errorf("as plain text: %d bytes, %q…", len(text), clip(text, 100))
			}
		})
	}
}

// TestMarkdownFallsBack checks the way out itself: pages too deep or too costly
// come back as text, in lines, without what a reader does not see.
func TestMarkdownFallsBack(t *testing.T) {
	const body = "<title>t</title><style>s</style><p>One  two</p><script>x()</script><ul><li>three<li><b>four</b> &amp; five</ul>"
	const want = "One two \nthree \nfour & five"
	if got := plainText(body); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for name, open := range map[string]string{
		"deeper than the parser goes": strings.Repeat("<div>", 100_000),
		"deep quotes":                 strings.Repeat("<blockquote>", 400) + strings.Repeat("<br>", 10_000),
	} {
		if got := markdown(open+body, testPage(t)); got != want {
			t.Errorf("%s: %q, want %q", name, clip(got, 100), want)
		}
	}
}

// TestMarkdownTables checks which tables are laid out.
func TestMarkdownTables(t *testing.T) {
	row := "<tr>" + strings.Repeat("<td>x", 10)
	rows := strings.Repeat(row, 300)
	if got := markdown("<table>"+rows+"</table>", testPage(t)); strings.Count(got, "| x ") != 3000 {
		t.Errorf("a table of 3,000 cells has %d", strings.Count(got, "| x "))
	}
	wide := rows + "<tr><td colspan=1000>x" // fills every row up to 1,000 cells
	if got := markdown("<table>"+wide+"</table>", testPage(t)); strings.Contains(got, "|") || strings.Count(got, "x") != 3001 {
		t.Errorf("a table of 301,000 cells: %d kept, starting %q", strings.Count(got, "x"), clip(got, 60))
	}
}
