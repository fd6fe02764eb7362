package run

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// hostileModules returns hostile modules that are written by hand, with the expected outcome of each.
func hostileModules() map[string]struct {
	module []byte
	want   hostile
} {
	type entry = struct {
		module []byte
		want   hostile
	}
	fine := slices.Concat(i32(1))
	locals := func(n uint64) []byte { return vec(append(leb(n), 0x7f)) }
	tooMany := entry{
		(&asm{locals: vec(append(leb(4_000_000_000), 0x7f))}).bytes(),
		hostile{orLost: true, code: "out_of_memory"},
	}
	return map[string]entry{
		"fine": {(&asm{body: slices.Concat(fine, drop)}).bytes(), hostile{}},
		// traps
		"unreachable":      {(&asm{body: unreachable}).bytes(), hostile{code: "sandbox_crash", says: "unreachable"}},
		"in its beginning": {(&asm{start: unreachable}).bytes(), hostile{code: "sandbox_crash", says: "unreachable"}},
		"division": {
			(&asm{body: slices.Concat(i32(1), i32(0), []byte{0x6d}, drop)}).bytes(),
			hostile{code: "sandbox_crash", says: "divide by zero"},
		},
		"out of bounds": {
			(&asm{body: slices.Concat(i32(-1), []byte{0x28, 2, 0}, drop)}).bytes(),
			hostile{code: "sandbox_crash", says: "out of bounds"},
		},
		"no function": {
			(&asm{table: []byte{0, 1}, body: slices.Concat(i32(0), []byte{0x11, 0, 0})}).bytes(),
			hostile{code: "sandbox_crash"},
		},
		"recursion": {(&asm{body: call(0)}).bytes(), hostile{code: "sandbox_crash", says: "stack overflow"}},
		"deep frames": {
			(&asm{locals: locals(40_000), body: call(0)}).bytes(),
			hostile{code: "sandbox_crash", says: "stack overflow"},
		},
		// memory
		"grows by one": {
			(&asm{body: forever(grow(1), i32(0), []byte{0x28, 2, 0}, drop)}).bytes(),
			hostile{code: "timeout", limit: short},
		},
		"grows, then traps": {
			(&asm{body: slices.Concat(grow(60000), unreachable)}).bytes(),
			hostile{code: "out_of_memory"},
		},
		"grows, then exits": {(&asm{imports: [][]byte{wasi("proc_exit", 1)}, body: slices.Concat(grow(60000), i32(2),
			call(0))}).bytes(), hostile{code: "out_of_memory"}},
		"grows and is well": {(&asm{body: grow(60000)}).bytes(), hostile{}},
		"begins with 4 GiB": {(&asm{memory: append([]byte{0}, leb(65536)...)}).bytes(), hostile{code: "out_of_memory"}},
		"starts with more": {
			(&asm{memory: append([]byte{0}, leb(65537)...)}).bytes(),
			hostile{code: "skill_error", says: "cannot be run"},
		},
		"huge table": {
			(&asm{table: append([]byte{0}, leb(4_294_967_295)...)}).bytes(),
			hostile{code: "skill_error", says: "table min must be"},
		},
		"table that grows": {(&asm{table: []byte{0, 1}, body: forever([]byte{0xd0, 0x70}, i32(1<<24),
			[]byte{0xfc, 15, 0}, drop)}).bytes(), hostile{orLost: true, code: "out_of_memory"}},
		"data out of bounds": {
			(&asm{data: slices.Concat([]byte{0}, i32(1<<30), []byte{0x0b}, name("x"))}).bytes(),
			hostile{code: "skill_error", says: "out of"},
		},
		// time
		"endless loop": {(&asm{body: forever()}).bytes(), hostile{code: "timeout", limit: short}},
		"endless fill": {(&asm{body: slices.Concat(grow(4000), forever(i32(0), i32(0), i32(200<<20),
			[]byte{0xfc, 11, 0}))}).bytes(), hostile{code: "timeout", limit: short}},
		"endless sleep": {(&asm{
			imports: [][]byte{wasi("poll_oneoff", 2)}, body: forever(i32(0), i32(64), i32(1), i32(128), call(0), drop),
			data: slices.Concat([]byte{0}, i32(24), []byte{0x0b}, sized([]byte("\xff\xff\xff\xff\xff\xff\xff\x0f"))),
		}).bytes(), hostile{code: "timeout", limit: short}},
		"endless output": {(&asm{
			imports: [][]byte{wasi("fd_write", 2)}, body: forever(i32(1), i32(0), i32(1), i32(60), call(0), drop),
			data: slices.Concat([]byte{0}, i32(0), []byte{0x0b}, sized([]byte("\x00\x00\x00\x00\x00\xff\x00\x00"))),
		}).bytes(), hostile{code: "skill_error", says: "printed more than 32 MiB"}},
		// compilation
		"nested blocks": {(&asm{body: slices.Concat(slices.Repeat([]byte{0x02, 0x40}, 100_000),
			slices.Repeat([]byte{0x0b}, 100_000))}).bytes(), hostile{
			code: "timeout", orLost: true, limit: short,
			orWell: true,
		}},
		"nested loops": {
			(&asm{locals: locals(10_000), body: nestedLoops(5_000, 10_000)}).bytes(),
			hostile{code: "timeout", orLost: true, limit: short, orWell: true},
		},
		"many locals": tooMany,
		"long function": {
			(&asm{body: slices.Repeat(slices.Concat(i32(1), drop), 3<<20)}).bytes(),
			hostile{code: "timeout", orLost: true, limit: short, orWell: true},
		},
		"many functions": {
			(&asm{more: slices.Repeat([][]byte{{0x01}}, 200_000)}).bytes(),
			hostile{code: "timeout", limit: short, orWell: true},
		},
		"one end too few": {cut(&asm{}, 1), hostile{code: "skill_error", says: "cannot be run"}},
		// invalid modules
		"no start": {(&asm{bare: true}).bytes(), hostile{code: "skill_error", says: "_start"}},
		"imports another": {
			(&asm{imports: [][]byte{slices.Concat(name("env"), name("system"), []byte{0, 0})}}).bytes(),
			hostile{code: "skill_error", says: "env"},
		},
		"imports unknown": {
			(&asm{imports: [][]byte{wasi("sock_connect", 2)}}).bytes(),
			hostile{code: "skill_error", says: "sock_connect"},
		},
		"wrong type": {
			(&asm{imports: [][]byte{wasi("proc_exit", 0)}}).bytes(),
			hostile{code: "skill_error", says: "proc_exit"},
		},
		"invalid code": {(&asm{body: []byte{0x6a}}).bytes(), hostile{code: "skill_error", says: "cannot be run"}},
		"empty":        {nil, hostile{code: "skill_error", says: "not a WebAssembly"}},
		"text":         {[]byte("#!/bin/sh\necho hi\n"), hostile{code: "skill_error", says: "not a WebAssembly"}},
		"magic alone":  {[]byte("\x00asm"), hostile{code: "skill_error", says: "cannot be run"}},
		"noise":        {noise(), hostile{code: "skill_error", says: "cannot be run"}},
		"too large": {
			append([]byte("\x00asm\x01\x00\x00\x00"), make([]byte, maxModuleBytes)...),
			hostile{code: "skill_error", says: "the largest module"},
		},
		"exits with 300": {(&asm{imports: [][]byte{wasi("proc_exit", 1)}, body: slices.Concat(i32(300),
			call(0))}).bytes(), hostile{says: "exit status 300"}},
		"exits with -1": {(&asm{imports: [][]byte{wasi("proc_exit", 1)}, body: slices.Concat(i32(-1),
			call(0))}).bytes(), hostile{says: "exit status 4294967295"}},
		"exits well": {(&asm{imports: [][]byte{wasi("proc_exit", 1)}, body: slices.Concat(i32(0), call(0),
			unreachable)}).bytes(), hostile{}},
	}
}

func cut(a *asm, n int) []byte {
	b := a.bytes()
	return b[:len(b)-n]
}

// nestedLoops returns a function whose nested loops use all of its locals.
func nestedLoops(depth, locals int) []byte {
	var out []byte
	for i := range depth {
		local := leb(uint64(i % locals))
		out = slices.Concat(out, []byte{0x03, 0x40, 0x20}, local, []byte{0x41, 1, 0x6a, 0x21}, local)
	}
	return append(out, slices.Repeat([]byte{0x0b}, depth)...)
}

func noise() []byte {
	r := rand.New(rand.NewPCG(1, 2))
	out := []byte("\x00asm\x01\x00\x00\x00")
	for range 10_000 {
		out = append(out, byte(r.Uint32()))
	}
	return out
}

func TestHostileModules(t *testing.T) {
	p := newPlace(t, nil)
	for name, c := range hostileModules() {
		t.Run(name, func(t *testing.T) {
			must.OK(t, os.WriteFile(filepath.Join(p.skill, "m.wasm"), c.module, 0o644))
			r, lines, err := runs(Wasm).within(t, cmp.Or(c.want.limit, patient), p, p.job("m.wasm"))
			if c.want.orWell && err == nil && !r.Failed {
				return
			}
			if c.want.orLost && codeOf(err) == "out_of_memory" {
				return
			}
			c.want.check(t, p, r, err, lines)
			assert.That(t, !running(t, p.skill), "it still runs")
		})
	}
}

// TestHostileGuests runs hostile modules that a compiler made.
func TestHostileGuests(t *testing.T) {
	p, cache := guestPlace(t)
	for name, c := range map[string]hostile{
		"memory":      {script: `{"do":"grow","n":2000}`, code: "out_of_memory"},
		"some memory": {script: `{"do":"grow","n":50}`, data: `50`},
		"recursion":   {script: `{"do":"recurse","n":100000000}`, code: "out_of_memory"},
		"loop":        {script: `{"do":"loop"}`, code: "timeout", limit: short},
		"sleeps":      {script: `{"do":"sleep"}`, says: "deadlock"},
		"exits":       {script: `{"do":"exit","n":9}`, says: "exit status 9"},
		"large args": {
			script: `{"do":"echo","n":5,"path":"` + strings.Repeat("x", 4<<20) + `"}`,
			data:   `{"args":["test"],"cwd":"/workspace","n":5}`,
		},
		"fills its tmp": {script: `{"do":"fill","path":"/tmp"}`, says: "I/O error"},
	} {
		t.Run(name, func(t *testing.T) {
			j := p.job("guest.wasm")
			j.Args, j.CacheDir = jsontext.Value(c.script), cache
			r, lines, err := runs(Wasm).within(t, cmp.Or(c.limit, patient), p, j)
			c.check(t, p, r, err, lines)
		})
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "a2e-home-*", "scratch-*"))
	for _, dir := range left {
		assert.That(t, !strings.HasPrefix(dir, p.up), "%s is left, %v", dir, err)
	}
}

// TestModuleCache: a second call does not compile the module again, and at most keptModules folders are kept.
func TestModuleCache(t *testing.T) {
	p := newPlace(t, map[string]string{"m.wasm": string((&asm{}).bytes())})
	cache := t.TempDir()
	for i := range keptModules + 3 {
		old := filepath.Join(cache, fmt.Sprintf("%064d", i))
		before := time.Now().Add(-time.Hour * time.Duration(100-i))
		must.OK(t, os.Mkdir(old, 0o700))
		must.OK(t, os.Chtimes(old, before, before))
	}
	j := p.job("m.wasm")
	j.CacheDir = cache
	for range 2 {
		r, _, err := p.module(t, j)
		must.That(t, err == nil && !r.Failed, "%+v, %v", r, err)
	}
	entries, err := os.ReadDir(cache)
	assert.That(t, err == nil && len(entries) == keptModules, "%d are kept, %v", len(entries), err)
	files, err := filepath.Glob(filepath.Join(cache, "*", "wazero-*", "*"))
	assert.That(t, err == nil && len(files) == 1, "%v, %v", files, err)
	for _, dir := range []string{"/proc/nothing", filepath.Join(p.skill, "m.wasm")} { // no cache can be made there
		j.CacheDir = dir
		r, _, err := p.module(t, j)
		assert.That(t, err == nil && !r.Failed, "%s: %+v, %v", dir, r, err)
	}
}

// BenchmarkWasm measures a call of a module that is already compiled.
func BenchmarkWasm(b *testing.B) {
	p, cache := guestPlace(b)
	j := p.job("guest.wasm")
	j.Args, j.CacheDir = jsontext.Value(`{"do":"echo"}`), cache
	r, _, err := p.module(b, j)
	must.That(b, err == nil && !r.Failed, "%v %v", r, err)
	for b.Loop() {
		r, _, err := p.module(b, j)
		must.That(b, err == nil && !r.Failed, "%v %v", r, err)
	}
}

// BenchmarkScript measures a call of a shell script.
func BenchmarkScript(b *testing.B) {
	p := newPlace(b, map[string]string{"run.sh": `echo '{"result":1}'`})
	for b.Loop() {
		r, _, err := p.script(b, p.job("run.sh"))
		must.That(b, err == nil && !r.Failed, "%v %v", r, err)
	}
}
