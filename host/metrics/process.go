package metrics

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// ticks is how many of them /proc has in a second.
const ticks = 100

// process tells what the process uses, by the names that every program of Go has: what the
// system does not tell is left out. The package runtime/metrics would cost time at each start.
func (m *Metrics) process(p *page) {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	p.gauge("go_goroutines", "Goroutines that there are.", float64(runtime.NumGoroutine()))
	p.gauge("go_memstats_heap_alloc_bytes", "Bytes of the heap in use.", float64(mem.HeapAlloc))
	p.gauge("go_memstats_sys_bytes", "Bytes that the runtime has from the system.", float64(mem.Sys))
	p.counter("go_gc_cycles", "Garbage collections.", float64(mem.NumGC))
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
