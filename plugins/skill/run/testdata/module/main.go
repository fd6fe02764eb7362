// Command module is what tests run modules with: a program without the race detector, in
// which compiling a module takes ten times as long, and a process a second to end.
package main

import "a2e/plugins/skill/run"

func main() { run.MaybeRunModule() }
