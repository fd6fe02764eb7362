package env

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

const (
	// chunkCount and chunkBytes bound what stands in one row, before it is packed.
	chunkCount = 256
	chunkBytes = 64 << 10
	// packFrom is the length from which on it is packed: experiences repeat themselves, and
	// a tenth is written in a tenth of the time.
	packFrom = 1 << 10
	// maxUnpacked bounds what a row of a store that was tampered with can grow to.
	maxUnpacked = 64 << 20
)

// packer makes rows of experiences. The zero packer is ready.
type packer struct {
	zip   *gzip.Writer // nil until it is needed: it is large
	plain []byte
	ids   map[string]bool // episodes of the row under way
}

// chunks puts experiences into rows, those of one episode together: they have more in
// common.
func (p *packer) chunks(made []experience, env string) (all []*chunk) {
	some := make([]*experience, len(made))
	for i := range made {
		some[i] = &made[i]
	}
	slices.SortFunc(some, func(a, b *experience) int {
		return cmp.Or(strings.Compare(a.episode, b.episode), cmp.Compare(a.step, b.step))
	})
	for len(some) > 0 {
		c := &chunk{id: uuid.NewString()}
		clear(p.ids)
		p.plain = append(p.plain[:0], '[')
		for c.count < min(chunkCount, len(some)) && len(p.plain) < chunkBytes {
			x := some[c.count]
			if c.count > 0 {
				p.plain = append(p.plain, ',')
			}
			p.plain = x.append(p.plain, env)
			p.note(x.episode)
			c.at = max(c.at, x.at)
			c.count++
		}
		c.episodes, c.data = p.noted(), p.packed(append(p.plain, ']'))
		some = some[c.count:]
		all = append(all, c)
	}
	return all
}

// packed gives a text as a row has it.
func (p *packer) packed(plain []byte) []byte {
	if len(plain) < packFrom {
		return bytes.Clone(plain)
	}
	var out bytes.Buffer
	if p.zip == nil {
		p.zip, _ = gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is one that there is
	}
	p.zip.Reset(&out)
	_, _ = p.zip.Write(plain) // a Buffer takes all
	_ = p.zip.Close()
	return out.Bytes()
}

// note adds an episode to those of the row.
func (p *packer) note(episode string) {
	if p.ids == nil {
		p.ids = make(map[string]bool)
	}
	p.ids[episode] = true
}

// noted gives the episodes of the row, with a blank after each.
func (p *packer) noted() string {
	var b strings.Builder
	for id := range p.ids {
		b.WriteString(id)
		b.WriteByte(' ')
	}
	return b.String()
}

// list gives the experiences of a row.
func (c *chunk) list() (all []jsontext.Value, err error) {
	data := c.data
	if !bytes.HasPrefix(data, []byte("[")) {
		zip, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		if data, err = io.ReadAll(io.LimitReader(zip, maxUnpacked)); err != nil {
			return nil, fmt.Errorf("unpacking: %w", err)
		}
	}
	return all, json.Unmarshal(data, &all)
}
