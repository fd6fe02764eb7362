//go:build linux

package sim

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// marathon lets one host work for many rounds. After each round the host rests, and must not use more
// resources than after earlier rounds.
func (s *Sim) marathon() {
	h := s.start(s.models[0], s.Seed%2 == 0)
	s.makePlan(h)
	d := s.newDraw(s.rng, h.name, h.model)
	d.begin(h)
	var rests []rest
	for range s.Rests {
		for range 40 {
			s.act(h, d)
		}
		h.do(d.native("r", "handshake/req", h.hello())) // a new handshake ends the processes of the session
		h.settle()
		h.idle()
		rests = append(rests, s.rested(h))
		if s.broken() {
			break
		}
	}
	s.t.Logf("%d rests in %s, mean and slope per hour: %s", len(rests),
		rests[len(rests)-1].at.Sub(rests[0].at).Round(time.Second), trends(rests))
	s.bounded(rests)
	s.end(h, d, 5)
	s.tally(h)
	s.after()
}

// idle waits until the numbers of the host's processes and files are stable, but only for a limited time, as
// failing servers are restarted.
func (h *host) idle() {
	was, same := rest{}, 0
	for look := 0; look < 100 && same < 5; look++ {
		now := rest{files: h.files(), children: len(descendants(h.cmd.Process.Pid))}
		if same++; now != was {
			was, same = now, 0
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// rest has the resources of a host when nothing is under way.
type rest struct {
	at                                          time.Time
	resident, private, files, threads, children int // the first two in KiB
}

// rested measures and records the resources of the host.
func (s *Sim) rested(h *host) rest {
	r := h.measure()
	s.note("%s: at rest it has %+v", h.name, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.figures.Rest = append(s.figures.Rest, r)
	return r
}

// measure reads the resources of the host from /proc.
func (h *host) measure() rest {
	r := rest{at: time.Now(), files: h.files(), children: len(descendants(h.cmd.Process.Pid))}
	for _, file := range []string{"status", "smaps_rollup"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", h.cmd.Process.Pid, file)) // it may have ended
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			if len(words) < 2 {
				continue
			}
			switch n, _ := strconv.Atoi(words[1]); words[0] {
			case "VmRSS:":
				r.resident = n
			case "Threads:":
				r.threads = n
			case "Private_Clean:", "Private_Dirty:":
				r.private += n
			}
		}
	}
	return r
}

// series returns the values of the rests in order, by name.
func series(rests []rest) map[string][]float64 {
	all := map[string][]float64{}
	for _, r := range rests {
		for name, n := range map[string]int{
			"resident KiB": r.resident, "private KiB": r.private,
			"descriptors": r.files, "threads": r.threads, "processes": r.children,
		} {
			all[name] = append(all[name], float64(n))
		}
	}
	return all
}

// trends returns a text with the mean of each series and its slope per hour by least squares.
func trends(rests []rest) string {
	var text []string
	for name, ys := range series(rests) {
		n, x, y, xx, xy := float64(len(ys)), 0.0, 0.0, 0.0, 0.0
		for i := range ys {
			hours := rests[i].at.Sub(rests[0].at).Hours()
			x, y, xx, xy = x+hours, y+ys[i], xx+hours*hours, xy+hours*ys[i]
		}
		text = append(text, fmt.Sprintf("%s %.0f %+.1f", name, y/n, (n*xy-x*y)/(n*xx-x*x)))
	}
	slices.Sort(text)
	return strings.Join(text, ", ")
}

// bounded checks that the resources of a host at rest do not grow: the least value in the last third of
// the rests must not exceed the greatest value in the second third by more than a slack.
func (s *Sim) bounded(rests []rest) {
	slack := map[string]float64{
		"resident KiB": 32 << 10, "private KiB": 32 << 10, "descriptors": 8, "threads": 8,
		"processes": 4,
	}
	third := len(rests) / 3
	for name, ys := range series(rests) {
		middle, last := ys[third:2*third], ys[2*third:]
		if third > 3 && slices.Min(last) > slices.Max(middle)+slack[name] {
			s.fail("%s at rest grow: %v", name, ys)
		}
	}
}
