package cli

import (
	"encoding/xml"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestTicksAreRound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		low, high float64
		ticks     string
	}{
		{0, 1, "[0 0.2 0.4 0.6 0.8 1]"},
		{-1, 1, "[-1 -0.5 0 0.5 1]"},
		{0, 1.93, "[0 0.5 1 1.5 2]"},
		{3, 3, "[1 2 3 4 5]"},
		{0, 0, "[-0.6 -0.4 -0.2 0 0.2 0.4 0.6]"},
		{0, 123456, "[0 50000 100000 150000]"},
	} {
		a, ticks := valueAxis(c.low, c.high, 200, 0)
		var words []string
		for _, v := range ticks {
			words = append(words, fmt.Sprintf("%.6g", v))
		}
		if got := fmt.Sprint(words); got != c.ticks || a.at(a.low) != 200 || a.at(a.high) != 0 || a.low > c.low || a.high < c.high {
			t.Errorf("%v to %v: %s, should be %s; %+v", c.low, c.high, got, c.ticks, a)
		}
	}
}

func TestTimesAreRound(t *testing.T) {
	t.Parallel()
	begin := float64(time.Date(2026, 3, 1, 22, 59, 30, 0, time.UTC).Unix())
	for _, c := range []struct {
		span  time.Duration
		first string
	}{
		{5 * time.Second, "22:59:30"}, {time.Minute, "22:59:30"}, {10 * time.Minute, "23:00"}, {20 * time.Hour, "03-02 00:00"},
		{100 * 24 * time.Hour, "2026-03-"}, {20 * 365 * 24 * time.Hour, "20"},
	} {
		ticks := timeTicks(begin, begin+c.span.Seconds())
		if len(ticks) < 2 || len(ticks) > 7 || !strings.HasPrefix(ticks[0].text, c.first) || ticks[0].at < begin {
			t.Errorf("%s: %v", c.span, ticks)
		}
		for i := 1; i < len(ticks); i++ {
			if step := ticks[i].at - ticks[i-1].at; step != ticks[1].at-ticks[0].at {
				t.Errorf("%s: uneven %v", c.span, ticks)
			}
		}
	}
}

// A picture of a hundred thousand values stays small, and its highest and lowest values stay in it.
func TestPicturesOfManyValuesAreSmall(t *testing.T) {
	t.Parallel()
	var many []point
	for i := range 100_000 {
		many = append(many, point{float64(i), math.Sin(float64(i) / 1000)})
	}
	many[50_000].value = 7
	var out strings.Builder
	if err := writeSVG(&out, "t", []panel{{title: "p", series: []series{{"s", many}}}}); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 100<<10 {
		t.Errorf("%d bytes", out.Len())
	}
	if !strings.Contains(out.String(), "V76.0") { // 7 of 8, whose place is 56
		t.Errorf("the highest value is not drawn: %.3000s", out.String())
	}
}

// Names come from agents: nothing in them becomes markup, and many of them still differ.
func TestPicturesOfStrangeNames(t *testing.T) {
	t.Parallel()
	var all []series
	for i := range maxPlotted {
		all = append(all, series{fmt.Sprintf("%d</text><script>\"'&\x00\xff", i), []point{{1, 0}}})
	}
	var out strings.Builder
	if err := writeSVG(&out, "<&>", []panel{{title: "]]>", series: all}}); err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal([]byte(out.String()), new(struct{ XMLName xml.Name })); err != nil || strings.Contains(out.String(), "<script") {
		t.Errorf("%v in %s", err, out.String())
	}
	looks := make(map[string]bool)
	for _, m := range regexp.MustCompile(`<path class="data" (.*) d="M\d+ \d+h28"`).FindAllStringSubmatch(out.String(), -1) {
		looks[m[1]] = true
	}
	if len(looks) != maxPlotted {
		t.Errorf("%d components have %d looks", maxPlotted, len(looks))
	}
}

// What cannot be written is told.
func TestPicturesThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	if err := writeSVG(brokenPipe{}, "t", []panel{{series: []series{{"s", []point{{1, 0}}}}}}); err == nil {
		t.Error("no error")
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, fmt.Errorf("nobody reads") }

func TestCorrectionsInTheirPlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		span *[2]int
		want string
		ok   bool
	}{
		{nil, "X", true}, {&[2]int{0, 0}, "Xäöü", true}, {&[2]int{3, 3}, "äöüX", true}, {&[2]int{1, 2}, "äXü", true}, {&[2]int{0, 3}, "X", true},
		{&[2]int{0, 4}, "", false}, {&[2]int{2, 1}, "", false}, {&[2]int{-1, 1}, "", false},
	} {
		if got, ok := corrected("äöü", "X", c.span); got != c.want || ok != c.ok {
			t.Errorf("%v gives %q, %t", c.span, got, ok)
		}
	}
}

func TestShortDurations(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 123 * time.Nanosecond: "123ns", 12345 * time.Nanosecond: "12.35µs", 1234567 * time.Nanosecond: "1.23ms", 61234 * time.Millisecond: "1m1.2s", 1500 * time.Millisecond: "1.5s",
	} {
		if got := shortDuration(d); got != want {
			t.Errorf("%d ns is %s, should be %s", d, got, want)
		}
	}
}
