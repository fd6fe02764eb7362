package env

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// cellPixels is the side of a cell in a picture.
const cellPixels = 16

// Modes implements Renderer. `screenshot` and `rgb_array` are a PNG, `text` has letters of
// Unicode, `ansi` those of ASCII alone.
func (w *gridWorld) Modes() []string { return []string{"screenshot", "rgb_array", "text", "ansi"} }

// Render implements Renderer.
func (w *gridWorld) Render(_ context.Context, mode string) (jsontext.Value, error) {
	out := protocol.AppendString([]byte(`{"mode":`), mode)
	switch mode {
	case "text":
		return append(protocol.AppendString(append(out, `,"text":`...), w.drawUnicode()), '}'), nil
	case "ansi":
		return append(protocol.AppendString(append(out, `,"text":`...), w.drawASCII()), '}'), nil
	}
	var b bytes.Buffer
	if err := png.Encode(&b, w.picture()); err != nil {
		return nil, err
	}
	return append(protocol.AppendBase64(append(out, `,"mime":"image/png","data":`...), b.Bytes()), '}'), nil
}

// drawASCII draws walls as - and |, the agent as A and the goal as G.
func (w *gridWorld) drawASCII() string {
	var b strings.Builder
	m := w.maze
	for y := range m.height + 1 {
		for x := range m.width {
			b.WriteByte('+')
			b.WriteString(pick(m.wallAbove(x, y), "---", "   "))
		}
		b.WriteString("+\n")
		if y == m.height {
			break
		}
		for x := range m.width + 1 {
			b.WriteString(pick(m.wallLeft(x, y), "|", " "))
			if x < m.width {
				b.WriteString(" " + w.mark(x, y, "A", "G") + " ")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// drawUnicode draws the walls as lines that meet.
func (w *gridWorld) drawUnicode() string {
	// the corner of each set of lines that leave it: 1 up, 2 right, 4 down, 8 left
	corners := []string{" ", "╵", "╶", "└", "╷", "│", "┌", "├", "╴", "┘", "─", "┴", "┐", "┤", "┬", "┼"}
	var b strings.Builder
	m := w.maze
	for y := range m.height + 1 {
		for x := range m.width + 1 {
			lines := 0
			for bit, there := range []bool{
				y > 0 && m.wallLeft(x, y-1), x < m.width && m.wallAbove(x, y), y < m.height && m.wallLeft(x, y), x > 0 && m.wallAbove(x-1, y),
			} {
				if there {
					lines |= 1 << bit
				}
			}
			b.WriteString(corners[lines])
			if x < m.width {
				b.WriteString(pick(m.wallAbove(x, y), "───", "   "))
			}
		}
		b.WriteString("\n")
		if y == m.height {
			break
		}
		for x := range m.width + 1 {
			b.WriteString(pick(m.wallLeft(x, y), "│", " "))
			if x < m.width {
				b.WriteString(" " + w.mark(x, y, "●", "★") + " ")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func pick(wall bool, yes, no string) string {
	if wall {
		return yes
	}
	return no
}

// mark is what stands in a cell.
func (w *gridWorld) mark(x, y int, agent, goal string) string {
	switch y*w.maze.width + x {
	case w.at:
		return agent
	case w.maze.goal:
		return goal
	}
	return " "
}

// wallAbove tells whether a wall is on top of a cell, or of the row below the last.
func (m *maze) wallAbove(x, y int) bool {
	return y == 0 || y == m.height || !m.isOpen(y*m.width+x, up)
}

// wallLeft tells whether a wall is left of a cell, or of the column after the last.
func (m *maze) wallLeft(x, y int) bool {
	return x == 0 || x == m.width || !m.isOpen(y*m.width+x, left)
}

// picture draws the maze in four colours: the floor, walls, the agent and the goal.
func (w *gridWorld) picture() image.Image {
	m := w.maze
	img := image.NewPaletted(image.Rect(0, 0, m.width*cellPixels+1, m.height*cellPixels+1), color.Palette{
		color.RGBA{0xfa, 0xfa, 0xf5, 0xff}, color.RGBA{0x22, 0x22, 0x2a, 0xff},
		color.RGBA{0x1f, 0x6f, 0xd6, 0xff}, color.RGBA{0x2e, 0xa0, 0x43, 0xff},
	})
	fill := func(x, y, width, height int, c uint8) {
		for row := y; row < y+height; row++ {
			for col := x; col < x+width; col++ {
				img.SetColorIndex(col, row, c)
			}
		}
	}
	inner := func(cell int, c uint8) {
		fill(cell%m.width*cellPixels+4, cell/m.width*cellPixels+4, cellPixels-7, cellPixels-7, c)
	}
	inner(m.goal, 3)
	inner(w.at, 2)
	for y := range m.height + 1 {
		for x := range m.width + 1 {
			if x < m.width && m.wallAbove(x, y) {
				fill(x*cellPixels, y*cellPixels, cellPixels+1, 1, 1)
			}
			if y < m.height && m.wallLeft(x, y) {
				fill(x*cellPixels, y*cellPixels, 1, cellPixels+1, 1)
			}
		}
	}
	return img
}
