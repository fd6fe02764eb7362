package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

const (
	leastLane = 14   // columns of the terminal for one of the board, where there are more than fit
	laneLines = 3    // of a title, or of a plan's description
	bullet    = "- " // stands before each task
)

// lane is a column of a board, ready for a terminal.
type lane struct {
	head  string
	items []string
	width int
}

// natural is the width at which nothing needs to be wrapped.
func (l *lane) natural() int {
	width := textWidth(l.head)
	for _, item := range l.items {
		width = max(width, len(bullet)+textWidth(item))
	}
	return width
}

// lanes reads the columns of the board and gives the number of tasks in them.
func (b *planBoard) lanes() (all []*lane, tasks int, err error) {
	for _, column := range b.Columns {
		raw, there := b.Tasks.Get(column)
		if !there {
			return nil, 0, errors.New("has no tasks for the column " + oneLine(column))
		}
		var rows []struct {
			Title    string `json:"title"`
			Assignee string `json:"assignee"`
		}
		if err := json.Unmarshal(raw, &rows); err != nil {
			return nil, 0, err
		}
		l := &lane{head: fmt.Sprintf("%s (%d)", oneLine(column), len(rows))}
		for _, r := range rows {
			item := oneLine(r.Title)
			if r.Assignee != "" {
				item += " @" + oneLine(r.Assignee)
			}
			l.items = append(l.items, item)
		}
		all, tasks = append(all, l), tasks+len(rows)
	}
	return all, tasks, nil
}

// print writes the board within so many columns of a terminal: bands of lanes under
// each other where not all fit side by side.
func (b *planBoard) print(w io.Writer, columns int) error {
	lanes, tasks, err := b.lanes()
	if err != nil {
		return fmt.Errorf("the board of %s cannot be read: %w", b.PlanID, err)
	}
	columns = max(columns, leastLane)
	count := fmt.Sprintf("%d tasks", tasks)
	if tasks == 1 {
		count = "1 task"
	}
	text := []string{cut(oneLine(b.Name), max(columns-len(b.PlanID)-len(count)-2*len(columnGap), leastLane)) + columnGap + b.PlanID + columnGap + count}
	if about := oneLine(b.Description); about != "" {
		text = append(text, wrap(about, columns, laneLines)...)
	}
	for _, band := range bands(lanes, columns) {
		text = append(append(text, ""), bandLines(band)...)
	}
	for _, line := range text {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}

// bands sets the widths of the lanes, as many side by side as fit.
func bands(lanes []*lane, columns int) [][]*lane {
	total := -len(columnGap)
	for _, l := range lanes {
		l.width = l.natural()
		total += l.width + len(columnGap)
	}
	var all [][]*lane
	if len(lanes) > 0 && total <= columns {
		return append(all, lanes)
	}
	for band := range slices.Chunk(lanes, max(1, (columns+len(columnGap))/(leastLane+len(columnGap)))) {
		share(band, columns-(len(band)-1)*len(columnGap))
		all = append(all, band)
	}
	return all
}

// share returns each lane what it needs, and the room that the narrow ones leave in
// equal parts to those that would need more.
func share(lanes []*lane, room int) {
	byNeed := slices.SortedStableFunc(slices.Values(lanes), func(a, b *lane) int { return a.width - b.width })
	for i, l := range byNeed {
		l.width = min(l.width, room/(len(byNeed)-i))
		room -= l.width
	}
}

// bandLines draws lanes side by side: the heads, a rule, and the tasks.
func bandLines(lanes []*lane) []string {
	cells := make([][]string, len(lanes))
	height := 0
	for i, l := range lanes {
		cells[i] = []string{cut(l.head, l.width), strings.Repeat("-", l.width)}
		for _, item := range l.items {
			mark := bullet
			for _, line := range wrap(item, l.width-len(bullet), laneLines) {
				cells[i] = append(cells[i], mark+line)
				mark = strings.Repeat(" ", len(bullet))
			}
		}
		height = max(height, len(cells[i]))
	}
	lines := make([]string, height)
	for at := range lines {
		var b strings.Builder
		for i, l := range lanes {
			cell := ""
			if at < len(cells[i]) {
				cell = cells[i][at]
			}
			b.WriteString(cell)
			b.WriteString(strings.Repeat(" ", max(0, l.width-textWidth(cell))+len(columnGap)))
		}
		lines[at] = b.String()
	}
	return lines
}

// wrap breaks text of one line into at most so many, of which the last is cut.
func wrap(text string, columns, lines int) (out []string) {
	for len(out) < lines-1 && textWidth(text) > columns {
		at, used := 0, 0 // where to break: at the last space that fits, or within a word
		for i, r := range text {
			if r == ' ' {
				at = i
			}
			if used += runeWidth(r); used > columns {
				if at == 0 {
					at = max(i, len(string(r)))
				}
				break
			}
		}
		out = append(out, text[:at])
		text = strings.TrimLeft(text[at:], " ")
	}
	return append(out, cut(text, columns))
}
