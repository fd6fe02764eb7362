package run

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"a2e/host/guard/wall"
	"a2e/protocol"
)

// moduleProcess is argv[0] of a process that runs a module.
const moduleProcess = "a2e-module"

// maxWorkers is the maximum number of threads that compile a module, as each takes memory.
const maxWorkers = 4

// maxTrapText is the length of the longest text about a trap, in bytes.
const maxTrapText = 1 << 10

// MaybeRunModule runs a WASI module and does not return if Wasm started this process for
// that. main and TestMain call it first, besides sandbox.MaybeRunLauncher.
//
// Modules need their own process because compiling a hostile module can take any amount of
// time and memory, and a goroutine cannot be stopped from outside.
func MaybeRunModule() {
	if len(os.Args) != 2 || os.Args[0] != moduleProcess {
		return
	}
	var order moduleRun
	if err := json.Unmarshal([]byte(os.Args[1]), &order); err != nil {
		os.Exit(2)
	}
	text, err := json.Marshal(order.run(context.Background()))
	if err == nil {
		err = os.WriteFile(order.Outcome, text, 0o600)
	}
	if err != nil {
		os.Exit(2) // judge treats a missing outcome as a crash
	}
	os.Exit(0)
}

// errGuestMemory ends a module that starts with more memory than allowed.
var errGuestMemory = errors.New("the module starts with more memory than allowed")

// run runs the module.
func (o *moduleRun) run(ctx context.Context) (end outcome) {
	debug.SetMemoryLimit(o.Memory + engineBytes/2) // collect, before the sandbox ends it
	memory := &guestMemory{max: uint64(o.Memory)}
	defer func() {
		switch v := recover(); {
		case v == nil:
		case v == any(errGuestMemory):
			end = outcome{Kind: outcomeMemory}
		default:
			end = outcome{Kind: outcomeTrap, Text: onOneLine(fmt.Sprint("the engine failed: ", v))}
		}
	}()
	code, err := os.ReadFile(o.Module)
	if err != nil {
		return outcome{Kind: outcomeInvalid, Text: "its file cannot be read: " + wall.Cause(err).Error()}
	}
	engine, module, err := o.compile(ctx, code)
	if err != nil {
		return outcome{Kind: outcomeInvalid, Text: onOneLine(err.Error())}
	}
	if _, ok := module.ExportedFunctions()["_start"]; !ok {
		return outcome{Kind: outcomeInvalid, Text: "it has no function _start; it should be a WASI command (preview 1)"}
	}
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, engine); err != nil {
		return outcome{Kind: outcomeInvalid, Text: err.Error()}
	}
	config, err := o.world()
	if err != nil {
		return outcome{Kind: outcomeInvalid, Text: wall.Cause(err).Error()}
	}
	instance, err := engine.InstantiateModule(experimental.WithMemoryAllocator(ctx, memory), module,
		config.WithStartFunctions())
	if err != nil {
		return ending(err, memory, outcomeInvalid)
	}
	_, err = instance.ExportedFunction("_start").Call(ctx)
	return ending(err, memory, outcomeTrap)
}

// ending returns the outcome of a call into the module; fault is the kind for other errors.
func ending(err error, memory *guestMemory, fault outcomeKind) outcome {
	exit := (*sys.ExitError)(nil)
	switch {
	case err == nil:
		return outcome{Kind: outcomeExit}
	case errors.As(err, &exit) && exit.ExitCode() == 0:
		return outcome{Kind: outcomeExit}
	case memory.denied:
		return outcome{Kind: outcomeMemory}
	case exit != nil:
		return outcome{Kind: outcomeExit, Code: exit.ExitCode()}
	case strings.Contains(err.Error(), "wasm error: "):
		fault = outcomeTrap // a trap may also happen in the module's start function
	}
	return outcome{Kind: fault, Text: onOneLine(err.Error())}
}

// onOneLine returns the text of an error, which may include a stack, on one line, cut to maxTrapText.
func onOneLine(text string) string {
	return protocol.Head(strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "\uFFFD"), maxTrapText)
}

// compile compiles the module. It ignores a cache that cannot be used.
func (o *moduleRun) compile(ctx context.Context, code []byte) (wazero.Runtime, wazero.CompiledModule, error) {
	ctx = experimental.WithCompilationWorkers(ctx, min(runtime.NumCPU(), maxWorkers))
	config := wazero.NewRuntimeConfig().WithDebugInfoEnabled(false).
		WithCoreFeatures(api.CoreFeaturesV2 | experimental.CoreFeaturesTailCall |
			experimental.CoreFeaturesExtendedConst)
	if o.Cache != "" {
		if cache, err := wazero.NewCompilationCacheWithDir(o.Cache); err == nil {
			engine := wazero.NewRuntimeWithConfig(ctx, config.WithCompilationCache(cache))
			if module, err := engine.CompileModule(ctx, code); err == nil {
				return engine, module, nil
			}
		}
	}
	engine := wazero.NewRuntimeWithConfig(ctx, config)
	module, err := engine.CompileModule(ctx, code)
	return engine, module, err
}

// world returns the module's folders, streams, clocks and environment.
func (o *moduleRun) world() (wazero.ModuleConfig, error) {
	folders := wazero.NewFSConfig()
	budget := &budget{bytes: maxWritten, files: maxCreated}
	env := []string{"A2E_SKILL_DIR=/skill", "HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8"}
	pwd := "/skill"
	for _, f := range []struct {
		guest, dir string
		write      bool
	}{{"/skill", o.Skill, false}, {"/workspace", o.Workspace, o.Write}, {"/tmp", o.Tmp, true}} {
		if f.dir == "" {
			continue
		}
		if f.guest == "/workspace" {
			pwd = f.guest
			env = append(env, "A2E_WORKSPACE=/workspace")
		}
		root, err := os.OpenRoot(filepath.Clean(f.dir))
		if err != nil {
			return nil, err
		}
		folders = folders.(sysfs.FSConfig).WithSysFSMount(&folder{root: root, write: f.write, budget: budget}, f.guest)
	}
	config := wazero.NewModuleConfig().WithName("").WithArgs(o.Name).WithFSConfig(folders).
		WithStdin(os.Stdin).WithStdout(os.Stdout).WithStderr(os.Stderr).
		WithSysWalltime().WithSysNanotime().WithSysNanosleep().WithRandSource(rand.Reader)
	for _, pair := range append(env, "PWD="+pwd) {
		name, value, _ := strings.Cut(pair, "=")
		config = config.WithEnv(name, value)
	}
	return config, nil
}

// guestMemory is the memory of a module: one slice with capacity for its maximum.
type guestMemory struct {
	max    uint64 // bytes
	used   []byte
	denied bool // the module asked for more
}

// Allocate implements experimental.MemoryAllocator.
func (g *guestMemory) Allocate(_, most uint64) experimental.LinearMemory {
	g.used = make([]byte, 0, min(g.max, most))
	return g
}

// Reallocate implements experimental.LinearMemory.
func (g *guestMemory) Reallocate(size uint64) []byte {
	if size > uint64(cap(g.used)) {
		if g.denied = true; len(g.used) == 0 {
			panic(errGuestMemory) // the engine cannot start without memory
		}
		return nil
	}
	g.used = g.used[:size]
	return g.used
}

// Free implements experimental.LinearMemory.
func (g *guestMemory) Free() {}
