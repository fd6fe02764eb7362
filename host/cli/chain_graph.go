package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"a2e/plugins/chains"
)

type chainGraphCmd struct {
	File   string `arg:"" help:"A file with a chain, as YAML or JSON; - is stdin."`
	Format string `enum:"svg,mermaid," default:"" placeholder:"FORMAT" help:"svg or mermaid. Without it: by the name of the output file, else mermaid."`
	Output string `short:"o" default:"-" placeholder:"FILE" help:"Write to this file, which appears only once it is complete; - is stdout."`
}

// Help implements kong.HelpProvider.
func (chainGraphCmd) Help() string {
	return "Mermaid is text that many pages show as a picture. The SVG suits light and dark pages. Solid arrows are next_node and the ways of branches, thin ones tell whose output a node reads.\n\n" +
		"Examples:\n  a2e chain graph chains/report.yaml -o report.svg\n  a2e chain graph chains/report.yaml >> README.md"
}

// Run draws the chain.
func (c chainGraphCmd) Run(cmd *commands, sys *System) error {
	plugin, err := cmd.chainPlugin(sys, func(w string) { say(sys.Err, "warning: %s", w) })
	if err != nil {
		return err
	}
	file, graph, err := cmd.chainGraph(plugin, sys, c.File)
	if err != nil {
		return err
	}
	draw := func(w io.Writer) error { return writeMermaid(w, graph) }
	if c.format() == "svg" {
		if len(graph.Nodes) > maxDrawn {
			return fail(exitFailed, fmt.Errorf("the chain has %d nodes, a picture holds %d; --format mermaid writes any number", len(graph.Nodes), maxDrawn))
		}
		title := "Chain " + filepath.Base(file.Path)
		draw = func(w io.Writer) error { return writeChainSVG(w, title, graph) }
	}
	if c.Output == "-" {
		return draw(sys.Out)
	}
	return writeWhole(c.Output, draw)
}

func (c chainGraphCmd) format() string {
	switch {
	case c.Format != "":
		return c.Format
	case strings.EqualFold(filepath.Ext(c.Output), ".svg"):
		return "svg"
	}
	return "mermaid"
}

// writeMermaid writes a chain as a Mermaid flowchart.
func writeMermaid(w io.Writer, g *chains.Graph) error {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	for i, n := range g.Nodes {
		left, right := mermaidShape(n.Kind)
		label := mermaidText(n.ID)
		if what := strings.TrimSpace(string(n.Kind) + " " + n.Name); what != "" {
			label += "<br/>" + mermaidText(what)
		}
		fmt.Fprintf(&b, "  n%d%s\"%s\"%s\n", i, left, label, right)
	}
	for _, e := range g.Edges {
		fmt.Fprintf(&b, "  n%d %s n%d\n", e.From, mermaidArrow(e.Kind), e.To)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func mermaidShape(kind chains.Kind) (left, right string) {
	switch kind {
	case chains.KindSkill:
		return "([", "])"
	case chains.KindProc:
		return "[/", "/]"
	case chains.KindBranch:
		return "{", "}"
	case chains.KindMap:
		return "{{", "}}"
	case chains.KindChain:
		return "[[", "]]"
	}
	return "[", "]"
}

func mermaidArrow(kind chains.EdgeKind) string {
	switch kind {
	case chains.EdgeData:
		return "-.->"
	case chains.EdgeNext:
		return "-->"
	case chains.EdgeError:
		return "-. on error .->"
	case chains.EdgeItem:
		return "==>|each item|"
	}
	return "-->|" + edgeLabel(kind) + "|"
}

// edgeLabel is what stands at an edge; "" = nothing.
func edgeLabel(kind chains.EdgeKind) string {
	switch kind {
	case chains.EdgeTrue, chains.EdgeFalse, chains.EdgeError:
		return string(kind)
	case chains.EdgeBoth:
		return "true, false"
	case chains.EdgeItem:
		return "each item"
	}
	return ""
}

// mermaidText makes text fit between the quotes of a label.
func mermaidText(text string) string {
	return strings.NewReplacer("#", "#35;", `"`, "#quot;", "&", "#amp;", "<", "#lt;", ">", "#gt;", "`", "#96;", `\`, "#92;").Replace(cut(oneLine(text), 60))
}
