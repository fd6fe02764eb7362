package env

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

// back is the opposite direction.
func (d direction) back() direction { return d ^ 1 }

// sides are the directions across d.
func (d direction) sides() (direction, direction) {
	if d <= down {
		return left, right
	}
	return up, down
}

// chance is a source of random numbers that is saved as one number: SplitMix64, Steele,
// Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014). It is our
// own so that a seed means the same in every build.
type chance uint64

func (c *chance) next() uint64 {
	*c += 0x9e3779b97f4a7c15
	z := uint64(*c)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number in [0,n), n small: the bias is beyond notice.
func (c *chance) below(n int) int { return int(c.next() >> 32 * uint64(n) >> 32) }

// float returns a number in [0,1).
func (c *chance) float() float64 { return float64(c.next()>>11) / (1 << 53) }

// maze is a grid of cells with walls between them. Each cell can be reached.
type maze struct {
	width, height int
	open          []uint8  // for each cell, row by row: the bits 1<<direction that lead out
	goal          int      // the cell furthest from cell 0, where each episode begins
	distance      []uint16 // of each cell from the goal
}

// newMaze makes a maze by a random walk that goes back where it is stuck (depth-first
// search), and then opens a few more walls: with one way alone, slips could not be made up for.
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

// beside returns the cell next to another, whatever wall there is; -1 = none.
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

// move returns the cell that a way leads to; a wall keeps one in place.
func (m *maze) move(at int, d direction) int {
	if !m.isOpen(at, d) {
		return at
	}
	return m.beside(at, d)
}

// distances returns how many moves each cell is from one.
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
