package checkpoint

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

var errDamaged = errors.New("it is damaged")

// encoder writes numbers and texts one after the other.
type encoder struct{ b []byte }

func (e *encoder) num(n uint64)   { e.b = binary.AppendUvarint(e.b, n) }
func (e *encoder) signed(n int64) { e.b = binary.AppendVarint(e.b, n) }
func (e *encoder) text(s string) {
	e.num(uint64(len(s)))
	e.b = append(e.b, s...)
}

// entry writes all but the name.
func (e *encoder) entry(x *entry) {
	if x == nil {
		e.num(0)
		return
	}
	racy := uint64(0)
	if x.racy {
		racy = 1
	}
	e.num(uint64(x.kind))
	e.num(uint64(x.held)<<1 | racy)
	e.num(uint64(x.perm))
	e.num(uint64(x.nlink))
	e.num(x.ino)
	e.signed(x.size)
	e.signed(x.mtime)
	e.signed(x.ctime)
	switch {
	case x.kind == aFile && x.held == heldWhole:
		e.b = append(e.b, x.sum[:]...)
	case x.kind == aLink:
		e.text(x.link)
	}
}

// decoder reads what an encoder wrote. Once something is wrong it gives nothing any more.
type decoder struct {
	s   string // the texts it gives are parts of it
	err error
}

func (d *decoder) take(n uint64) string {
	if n > uint64(len(d.s)) {
		d.s, d.err = "", errDamaged
		return ""
	}
	text := d.s[:n]
	d.s = d.s[n:]
	return text
}

func (d *decoder) num() uint64 {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		b := d.take(1)
		if b == "" {
			return 0
		}
		if n |= uint64(b[0]&0x7f) << shift; b[0] < 0x80 {
			return n
		}
	}
	d.err = errDamaged
	return 0
}

func (d *decoder) signed() int64 {
	n := d.num()
	return int64(n>>1) ^ -int64(n&1)
}

func (d *decoder) text() string { return d.take(d.num()) }

// entry reads one; nil = a free name.
func (d *decoder) entry(x *entry) *entry {
	x.kind = kind(d.num())
	if x.kind == 0 || x.kind > aLink {
		return nil
	}
	flags := d.num()
	x.held, x.racy = held(min(flags>>1, uint64(heldClosed))), flags&1 == 1
	x.perm, x.nlink, x.ino = uint32(d.num()), uint32(d.num()), d.num()
	x.size, x.mtime, x.ctime = d.signed(), d.signed(), d.signed()
	switch {
	case x.kind == aFile && x.held == heldWhole:
		copy(x.sum[:], d.take(uint64(len(x.sum))))
	case x.kind == aLink:
		x.link = d.text()
	}
	return x
}

// frame puts a length and a checksum before a payload, which begins after frameSize bytes of b.
func frame(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-frameSize))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[frameSize:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

const frameSize = 8

// unframe returns the first payload of b and the bytes it takes up; size 0 = there is no whole one.
func unframe(b []byte) (payload []byte, size int) {
	if len(b) < frameSize {
		return nil, 0
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	if n > uint64(len(b)-frameSize) {
		return nil, 0
	}
	payload = b[frameSize : frameSize+n]
	if crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, 0
	}
	return payload, frameSize + int(n)
}
