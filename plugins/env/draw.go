package env

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"slices"
	"strings"
	"unicode/utf8"

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
	if l, ok := map[string]letters{"text": unicodeLetters(), "ansi": asciiLetters()}[mode]; ok {
		return append(protocol.AppendString(append(out, `,"text":`...), w.draw(l)), '}'), nil
	}
	var b bytes.Buffer
	if err := png.Encode(&b, w.picture()); err != nil {
		return nil, err
	}
	return append(protocol.AppendBase64(append(out, `,"mime":"image/png","data":`...), b.Bytes()), '}'), nil
}

// letters are what a maze is drawn with.
type letters struct {
	corners                   []string // for each set of lines that leave it: 1 up, 2 right, 4 down, 8 left
	across, down, agent, goal string
}

func unicodeLetters() letters {
	return letters{strings.Split(" ╵╶└╷│┌├╴┘─┴┐┤┬┼", ""), "───", "│", "●", "★"}
}

func asciiLetters() letters { return letters{slices.Repeat([]string{"+"}, 16), "---", "|", "A", "G"} }

// draw draws the maze, two lines for each row of cells.
func (w *gridWorld) draw(l letters) string {
	var b strings.Builder
	m := w.maze
	put := func(wall bool, yes string) { // or as many blanks
		if !wall {
			yes = strings.Repeat(" ", utf8.RuneCountInString(yes))
		}
		b.WriteString(yes)
	}
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
			b.WriteString(l.corners[lines])
			if x < m.width {
				put(m.wallAbove(x, y), l.across)
			}
		}
		b.WriteString("\n")
		if y == m.height {
			break
		}
		for x := range m.width + 1 {
			put(m.wallLeft(x, y), l.down)
			if x < m.width {
				b.WriteString(" " + w.mark(x, y, l.agent, l.goal) + " ")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
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

// wallAbove reports whether a wall is on top of a cell, or of the row below the last.
func (m *maze) wallAbove(x, y int) bool {
	return y == 0 || y == m.height || !m.isOpen(y*m.width+x, up)
}

// wallLeft reports whether a wall is left of a cell, or of the column after the last.
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
		draw.Draw(img, image.Rect(x, y, x+width, y+height), image.NewUniform(img.Palette[c]), image.Point{}, draw.Src)
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
