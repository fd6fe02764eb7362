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

// direction is one of the four ways out of a cell.
type direction uint8

// The directions, in the order of the action types.
const (
	up direction = iota
	down
	left
	right
	directions
)

func (d direction) String() string { return [...]string{"up", "down", "left", "right"}[d] }

// back returns the opposite direction.
func (d direction) back() direction { return d ^ 1 }

// sides returns the two directions across d.
func (d direction) sides() (direction, direction) {
	if d <= down {
		return left, right
	}
	return up, down
}

// chance is a source of random numbers that is saved as one number: SplitMix64 of Steele, Lea and Flood,
// "Fast splittable pseudorandom number generators" (OOPSLA 2014). It does not use a library, so that a
// seed means the same in every build.
type chance uint64

func (c *chance) next() uint64 {
	*c += 0x9e3779b97f4a7c15
	z := uint64(*c)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number in [0,n). For small n the bias is negligible.
func (c *chance) below(n int) int { return int(c.next() >> 32 * uint64(n) >> 32) }

// float returns a number in [0,1).
func (c *chance) float() float64 { return float64(c.next()>>11) / (1 << 53) }

// maze is a grid of cells with walls between them. Each cell can be reached.
type maze struct {
	width, height int
	open          []uint8  // for each cell, row by row: the bits 1<<direction of the directions without a wall
	goal          int      // the cell furthest from cell 0, where each episode begins
	distance      []uint16 // of each cell from the goal
}

// newMaze makes a maze by a random walk that goes back where it is stuck (depth-first
// search), and then opens a few more walls: with only one way, slips could not be compensated.
func newMaze(width, height int, c *chance) *maze {
	m := &maze{width: width, height: height, open: make([]uint8, width*height)}
	path := []int{0}
	for len(path) > 0 {
		at := path[len(path)-1]
		var ways []direction
		for d := up; d < directions; d++ {
			if to := m.beside(at, d); to >= 0 && to != 0 && m.open[to] == 0 {
				ways = append(ways, d)
			}
		}
		if ways == nil {
			path = path[:len(path)-1]
			continue
		}
		d := ways[c.below(len(ways))]
		m.join(at, d)
		path = append(path, m.beside(at, d))
	}
	for range width * height / 10 {
		at, d := c.below(width*height), direction(c.below(int(directions)))
		if m.beside(at, d) >= 0 {
			m.join(at, d)
		}
	}
	from := m.distances(0)
	for at, d := range from {
		if d > from[m.goal] {
			m.goal = at
		}
	}
	m.distance = m.distances(m.goal)
	return m
}

// beside returns the cell next to another, even if there is a wall between them; -1 = none.
func (m *maze) beside(at int, d direction) int {
	x, y := at%m.width, at/m.width
	switch {
	case d == up && y > 0:
		return at - m.width
	case d == down && y < m.height-1:
		return at + m.width
	case d == left && x > 0:
		return at - 1
	case d == right && x < m.width-1:
		return at + 1
	}
	return -1
}

func (m *maze) join(at int, d direction) {
	m.open[at] |= 1 << d
	m.open[m.beside(at, d)] |= 1 << d.back()
}

func (m *maze) isOpen(at int, d direction) bool { return m.open[at]&(1<<d) != 0 }

// move returns the cell that a move leads to; a wall keeps the agent in place.
func (m *maze) move(at int, d direction) int {
	if !m.isOpen(at, d) {
		return at
	}
	return m.beside(at, d)
}

// distances returns how many moves each cell is away from the cell from.
func (m *maze) distances(from int) []uint16 {
	const unseen = 1<<16 - 1
	far := make([]uint16, len(m.open))
	for i := range far {
		far[i] = unseen
	}
	far[from] = 0
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		for d := up; d < directions; d++ {
			if to := m.move(queue[0], d); far[to] == unseen {
				far[to] = far[queue[0]] + 1
				queue = append(queue, to)
			}
		}
	}
	return far
}

// cellPixels is the side of a cell in a picture.
const cellPixels = 16

// Modes implements World. `screenshot` and `rgb_array` are a PNG, `text` uses Unicode characters,
// `ansi` only ASCII.
func (w *gridWorld) Modes() []string { return []string{"screenshot", "rgb_array", "text", "ansi"} }

// Render implements World.
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

// letters are the characters that a maze is drawn with.
type letters struct {
	corners                   []string // for each set of walls that meet in a corner: 1 up, 2 right, 4 down, 8 left
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
	put := func(wall bool, yes string) { // without a wall as many blanks
		if !wall {
			yes = strings.Repeat(" ", utf8.RuneCountInString(yes))
		}
		b.WriteString(yes)
	}
	for y := range m.height + 1 {
		for x := range m.width + 1 {
			lines := 0
			for bit, there := range []bool{
				y > 0 && m.wallLeft(x, y-1), x < m.width && m.wallAbove(x, y), y < m.height && m.wallLeft(x, y),
				x > 0 && m.wallAbove(x-1, y),
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

// mark returns the character in a cell.
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
		color.RGBA{0xfa, 0xfa, 0xf5, 0xff},
		color.RGBA{0x22, 0x22, 0x2a, 0xff},
		color.RGBA{0x1f, 0x6f, 0xd6, 0xff},
		color.RGBA{0x2e, 0xa0, 0x43, 0xff},
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
