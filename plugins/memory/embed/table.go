package embed

// table counts features: an open hash table that keeps its memory, within reason.
type table struct {
	cells []cell // a power of two of them
	used  int
}

type cell struct {
	hash          uint64
	weight, times int32 // times 0 = free
}

// largeTable is how many cells a table keeps for the next text.
const largeTable = 1 << 13

// reset empties the table, which gets at least size cells, a power of two.
func (t *table) reset(size int) {
	if len(t.cells) < size || len(t.cells) > largeTable {
		t.cells = make([]cell, size)
	}
	clear(t.cells)
	t.used = 0
}

// add counts a feature once more. Its weight is the largest it came with.
func (t *table) add(hash uint64, weight int32) {
	if weight == 0 {
		return
	}
	if t.used*2 >= len(t.cells) {
		t.grow()
	}
	c := &t.cells[t.index(hash)]
	if c.times == 0 {
		t.used++
	}
	c.hash, c.weight, c.times = hash, max(c.weight, weight), c.times+1
}

// index gives the cell of hash, or the free one where it belongs.
func (t *table) index(hash uint64) int {
	mask := uint64(len(t.cells) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		if c := &t.cells[i]; c.times == 0 || c.hash == hash {
			return int(i)
		}
	}
}

// grow doubles the table.
func (t *table) grow() {
	old := t.cells
	t.cells = make([]cell, 2*len(old))
	for _, c := range old {
		if c.times > 0 {
			t.cells[t.index(c.hash)] = c
		}
	}
}
