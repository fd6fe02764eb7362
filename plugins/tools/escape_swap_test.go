//go:build unix

package tools

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A folder that is swapped for a link, again and again while the tools work in
// it, lets none of them out. Where the link stays inside, reads that name it may
// follow it, but no walk and no write does.
func TestWallSwappedFolders(t *testing.T) {
	for _, target := range []string{"../../outside", "other"} {
		t.Run(target, func(t *testing.T) {
			s := newStage(t)
			s.legitimate(t)
			s.put(t, "box/sub/in.txt", inside)
			s.put(t, "box/sub/secret.txt", inside)
			if target == "other" {
				for _, name := range []string{"in.txt", "secret.txt", marker} {
					s.put(t, "box/other/"+name, secret+inside)
				}
			}
			s.link(t, target, "box/link")
			s.tryWhileSwapping(t, target == "other")
		})
	}
}

// tryWhileSwapping runs the tools in a folder that changes places with a link.
// readable says that the link stays inside the workspace.
func (s *stage) tryWhileSwapping(t *testing.T, readable bool) {
	sub, link := filepath.Join(s.dir, "box/sub"), filepath.Join(s.dir, "box/link")
	look := func() string {
		if readable {
			return picture(t, filepath.Join(s.dir, "box/other"))
		}
		return picture(t, s.outside)
	}
	before := look()
	var swapping sync.Mutex // held for a swap, and by a round that is to get through
	stop := swapOften(t, &swapping, sub, link)
	allowed := make(map[string]int)
	for round := range 100 {
		calm := round%50 == 49
		if calm {
			swapping.Lock()
			if _, err := os.Readlink(sub); err == nil {
				check(t, exchange(sub, link))
			}
		}
		s.tryInBox(t, allowed, readable)
		if calm {
			swapping.Unlock()
		}
	}
	t.Logf("%d swaps; calls that got through: %v", stop(), allowed)
	if after := look(); after != before {
		t.Errorf("what the link leads to changed:\n%s\nwas:\n%s", after, before)
	}
	if len(allowed) < 7 {
		t.Errorf("some tools never got through: %v", allowed)
	}
	if left := leftOver(t, s.dir); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

// swapOften makes two names change places until stop, which gives how often.
func swapOften(t *testing.T, swapping *sync.Mutex, a, b string) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	swaps := make(chan int, 1)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			swapping.Lock()
			err := exchange(a, b)
			swapping.Unlock()
			if err != nil {
				t.Errorf("swap: %v", err)
				break
			}
		}
		swaps <- n
	}()
	return func() int {
		cancel()
		return <-swaps
	}
}

// tryInBox tries all tools once and counts those that get through.
func (s *stage) tryInBox(t *testing.T, allowed map[string]int, readable bool) {
	t.Helper()
	for _, c := range []struct {
		tool  string
		args  args
		named bool // reads under the name that is swapped
	}{
		{"grep", args{"pattern": "S|I", "path": "box"}, false},
		{"glob", args{"pattern": "box/**"}, false},
		{"read_file", args{"path": "box/sub/secret.txt"}, true},
		{"list_dir", args{"path": "box/sub"}, true},
		{"write_file", args{"path": "box/sub/new.txt", "content": inside}, false},
		{"write_file", args{"path": "box/sub/secret.txt", "content": inside}, false},
		{"edit_file", args{"path": "box/sub/in.txt", "old": inside, "new": inside + "."}, false},
	} {
		text, err := s.answer(t, c.tool, c.args)
		leaks := strings.Contains(text, secret) || strings.Contains(text, marker)
		if readable { // under its own name it may be seen, by a walk not under the one that is swapped
			leaks = !c.named && strings.Contains(text, "box/sub/"+marker)
		}
		if leaks {
			t.Fatalf("%s %v shows what the link leads to: %s", c.tool, c.args, text)
		}
		if err == nil {
			allowed[fmt.Sprint(c.tool, c.args["path"])]++
		}
	}
}
