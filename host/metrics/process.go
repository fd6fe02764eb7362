package metrics

import (
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
)

// ticks is how many of them /proc has in a second.
const ticks = 100

// process tells what the process uses, by the names that every program of Go has: what the
// system does not tell is left out.
func (m *Metrics) process(p *page) {
	samples := []metrics.Sample{{Name: "/sched/goroutines:goroutines"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(samples)
	value := func(i int) float64 { return float64(samples[i].Value.Uint64()) }
	p.gauge("go_goroutines", "Goroutines that there are.", value(0))
	p.gauge("go_memstats_heap_alloc_bytes", "Bytes of the heap in use.", value(1))
	p.gauge("go_memstats_sys_bytes", "Bytes that the runtime has from the system.", value(2))
	p.counter("go_gc_cycles", "Garbage collections.", value(3))
	p.family("gauge", "go_info", "The version of Go.")
	p.sample("", 1, "version", runtime.Version())
	p.gauge("process_start_time_seconds", "When the host began, in seconds since 1970.", float64(m.begun.UnixMilli())/1000)
	if stat, err := os.ReadFile("/proc/self/stat"); err == nil {
		_, rest, _ := strings.Cut(string(stat), ") ") // the name before may hold anything
		if fields := strings.Fields(rest); len(fields) > 21 {
			p.counter("process_cpu_seconds", "Processor time.", (field(fields[11])+field(fields[12]))/ticks)
			p.gauge("process_resident_memory_bytes", "Memory that the process holds.", field(fields[21])*float64(os.Getpagesize()))
		}
	}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		p.gauge("process_open_fds", "Open files.", float64(len(files)-1)) // without that of the folder
	}
}

func field(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}
