package run

import "slices"

// A few words of WebAssembly, enough to write hostile modules down by hand.

// leb encodes an unsigned number.
func leb(n uint64) []byte {
	var out []byte
	for {
		b := byte(n & 0x7f)
		if n >>= 7; n == 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

// vec encodes a list: its length and its parts.
func vec(parts ...[]byte) []byte { return append(leb(uint64(len(parts))), slices.Concat(parts...)...) }

// sized encodes bytes with their number in front.
func sized(b []byte) []byte { return append(leb(uint64(len(b))), b...) }

func name(s string) []byte { return sized([]byte(s)) }

func section(id byte, content []byte) []byte { return append([]byte{id}, sized(content)...) }

// asm is a module under construction. Type 0 is func(), 1 is func(i32), 2 is
// func(i32,i32,i32,i32) i32.
type asm struct {
	imports [][]byte
	table   []byte // limits
	memory  []byte // limits
	start   []byte // body of the start function
	locals  []byte // of _start; nil = none
	body    []byte // of _start
	more    [][]byte
	data    []byte
	bare    bool // without _start
}

// wasi imports a function of WASI.
func wasi(function string, typ byte) []byte {
	return slices.Concat(name("wasi_snapshot_preview1"), name(function), []byte{0, typ})
}

// code encodes a function.
func code(locals, body []byte) []byte {
	if locals == nil {
		locals = []byte{0}
	}
	return sized(slices.Concat(locals, body, []byte{0x0b}))
}

// bytes returns the binary. _start is the function after the imports.
func (a *asm) bytes() []byte {
	main := uint64(len(a.imports))
	types := vec([]byte{0x60, 0, 0}, []byte{0x60, 1, 0x7f, 0}, []byte{0x60, 4, 0x7f, 0x7f, 0x7f, 0x7f, 1, 0x7f})
	functions, codes := [][]byte{{0}}, [][]byte{code(a.locals, a.body)}
	if a.start != nil {
		functions, codes = append(functions, []byte{0}), append(codes, code(nil, a.start))
	}
	for _, body := range a.more {
		functions, codes = append(functions, []byte{0}), append(codes, code(nil, body))
	}
	out := slices.Concat([]byte("\x00asm\x01\x00\x00\x00"), section(1, types))
	if len(a.imports) > 0 {
		out = append(out, section(2, vec(a.imports...))...)
	}
	out = append(out, section(3, vec(functions...))...)
	if a.table != nil {
		out = append(out, section(4, vec(append([]byte{0x70}, a.table...)))...)
	}
	if a.memory == nil {
		a.memory = []byte{0, 1}
	}
	out = append(out, section(5, vec(a.memory))...)
	exports := [][]byte{append(name("memory"), 2, 0)}
	if !a.bare {
		exports = append(exports, slices.Concat(name("_start"), []byte{0}, leb(main)))
	}
	out = append(out, section(7, vec(exports...))...)
	if a.start != nil {
		out = append(out, section(8, leb(main+1))...)
	}
	out = append(out, section(10, vec(codes...))...)
	if a.data != nil {
		out = append(out, section(11, vec(a.data))...)
	}
	return out
}

// Instructions.
var (
	unreachable = []byte{0x00}
	drop        = []byte{0x1a}
)

// i32 is i32.const; its number is signed there.
func i32(n int32) []byte {
	out := []byte{0x41}
	for {
		b := byte(n & 0x7f)
		n >>= 7
		if n == 0 && b&0x40 == 0 || n == -1 && b&0x40 != 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

func call(f uint64) []byte { return append([]byte{0x10}, leb(f)...) }

// forever repeats a body.
func forever(body ...[]byte) []byte {
	return slices.Concat([]byte{0x03, 0x40}, slices.Concat(body...), []byte{0x0c, 0x00, 0x0b})
}

// grow is memory.grow by so many pages, its answer dropped.
func grow(pages int32) []byte { return slices.Concat(i32(pages), []byte{0x40, 0x00}, drop) }
