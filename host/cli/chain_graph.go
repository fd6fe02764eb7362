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
	Format string `enum:"mermaid,dot," default:"" placeholder:"FORMAT" help:"mermaid, or dot for Graphviz. Without it: by the name of the output file, else mermaid."`
	Output string `short:"o" default:"-" placeholder:"FILE" help:"Write to this file, which appears only once it is complete; - is stdout."`
}

// Run draws the chain as text.
func (c chainGraphCmd) Run(cmd *commands, sys *System) error {
	format := c.Format
	switch ext := strings.ToLower(filepath.Ext(c.Output)); {
	case ext == ".svg" || ext == ".png":
		return fail(exitUsage, fmt.Errorf("--output %s: the graph is text, as Mermaid or DOT; `a2e chain graph %s --format dot | dot -T%s` makes a picture of it", oneLine(c.Output), oneLine(c.File), ext[1:]))
	case format == "" && (ext == ".dot" || ext == ".gv"):
		format = "dot"
	}
	plugin, err := cmd.chainPlugin(sys, sys.warn)
	if err != nil {
		return err
	}
	_, graph, err := cmd.chainGraph(plugin, sys, c.File)
	if err != nil {
		return err
	}
	text := mermaidOf(graph)
	if format == "dot" {
		text = dotOf(graph)
	}
	return sys.output(c.Output, "", func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// shape is how a kind of node is drawn.
type shape struct{ left, right, dot string }

func shapeOf(kind chains.Kind) shape {
	switch kind {
	case chains.KindSkill:
		return shape{"([", "])", "box, style=rounded"}
	case chains.KindProc:
		return shape{"[/", "/]", "parallelogram"}
	case chains.KindBranch:
		return shape{"{", "}", "diamond"}
	case chains.KindMap:
		return shape{"{{", "}}", "hexagon"}
	case chains.KindChain:
		return shape{"[[", "]]", "component"}
	}
	return shape{"[", "]", "box"}
}

// edge is how a kind of edge is drawn.
type edge struct{ mermaid, dot string }

func edgeOf(kind chains.EdgeKind) edge {
	switch kind {
	case chains.EdgeData:
		return edge{"-.->", "style=dotted"}
	case chains.EdgeNext:
		return edge{"-->", ""}
	case chains.EdgeError:
		return edge{"-. on error .->", `style=dashed, label="on error"`}
	case chains.EdgeItem:
		return edge{"==>|each item|", `style=bold, label="each item"`}
	case chains.EdgeBoth:
		return edge{"-->|true, false|", `label="true, false"`}
	}
	return edge{"-->|" + string(kind) + "|", fmt.Sprintf("label=%q", string(kind))}
}

// mermaidOf is a chain as a Mermaid flowchart.
func mermaidOf(g *chains.Graph) string {
	escape := strings.NewReplacer("#", "#35;", `"`, "#quot;", "&", "#amp;", "<", "#lt;", ">", "#gt;", "`", "#96;", `\`, "#92;")
	return drawn("flowchart TD\n", "", g, func(i int, kind chains.Kind, lines []string) string {
		for k := range lines {
			lines[k] = escape.Replace(lines[k])
		}
		s := shapeOf(kind)
		return fmt.Sprintf(`n%d%s"%s"%s`, i, s.left, strings.Join(lines, "<br/>"), s.right)
	}, func(e chains.GraphEdge) string {
		return fmt.Sprintf("n%d %s n%d", e.From, edgeOf(e.Kind).mermaid, e.To)
	})
}

// dotOf is a chain as a Graphviz digraph.
func dotOf(g *chains.Graph) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	return drawn("digraph chain {\n", "}\n", g, func(i int, kind chains.Kind, lines []string) string {
		for k := range lines {
			lines[k] = escape.Replace(lines[k])
		}
		return fmt.Sprintf(`n%d [label="%s", shape=%s];`, i, strings.Join(lines, `\n`), shapeOf(kind).dot)
	}, func(e chains.GraphEdge) string {
		return fmt.Sprintf("n%d -> n%d [%s];", e.From, e.To, edgeOf(e.Kind).dot)
	})
}

// drawn writes a line for each node, of which a label has its id and what it does, and for
// each edge.
func drawn(head, foot string, g *chains.Graph, node func(int, chains.Kind, []string) string, arrow func(chains.GraphEdge) string) string {
	var b strings.Builder
	b.WriteString(head)
	for i, n := range g.Nodes {
		lines := []string{cut(oneLine(n.ID), 60)}
		if what := strings.TrimSpace(string(n.Kind) + " " + n.Name); what != "" {
			lines = append(lines, cut(oneLine(what), 60))
		}
		b.WriteString("  " + node(i, n.Kind, lines) + "\n")
	}
	for _, e := range g.Edges {
		b.WriteString("  " + arrow(e) + "\n")
	}
	b.WriteString(foot)
	return b.String()
}
