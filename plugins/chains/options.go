package chains

import (
	"cmp"
	"fmt"
	"path/filepath"
)

// The options where the config sets none.
const (
	defaultMaxParallel    = 16
	defaultMaxNodes       = 10_000
	defaultMaxItems       = 100_000
	defaultMaxDepth       = 8
	defaultMaxStateBytes  = 128 << 20
	defaultMaxResultBytes = 4 << 20
	defaultChainsPath     = "chains"
)

// Options are the plugin's options in the config.
type Options struct {
	MaxParallel    int    `yaml:"max_parallel" min:"0" max:"1024" doc:"Nodes of one chain, and items of its maps, that run at once; 0 = 16."`
	MaxNodes       int    `yaml:"max_nodes" min:"0" doc:"Nodes of one chain, those of the saved chains that it runs included; 0 = 10000."`
	MaxItems       int    `yaml:"max_items" min:"0" doc:"Items of one map; 0 = 100000."`
	MaxDepth       int    `yaml:"max_depth" min:"0" max:"64" doc:"How deep saved chains may run each other; 0 = 8."`
	MaxStateBytes  int    `yaml:"max_state_bytes" min:"0" doc:"Memory for the outputs of all nodes of a running chain; 0 = 128 MiB."`
	MaxResultBytes int    `yaml:"max_result_bytes" min:"0" doc:"Outputs in an answer, together; the largest are left out beyond that. 0 = 4 MiB."`
	ChainsPath     string `yaml:"chains_path" doc:"The folder of saved chains, NAME.yaml, in the workspace."`
}

// DefaultOptions gives the options where the config sets none.
func DefaultOptions() Options {
	var o Options
	o.setDefaults()
	return o
}

func (o *Options) setDefaults() {
	o.MaxParallel = cmp.Or(o.MaxParallel, defaultMaxParallel)
	o.MaxNodes = cmp.Or(o.MaxNodes, defaultMaxNodes)
	o.MaxItems = cmp.Or(o.MaxItems, defaultMaxItems)
	o.MaxDepth = cmp.Or(o.MaxDepth, defaultMaxDepth)
	o.MaxStateBytes = cmp.Or(o.MaxStateBytes, defaultMaxStateBytes)
	o.MaxResultBytes = cmp.Or(o.MaxResultBytes, defaultMaxResultBytes)
	o.ChainsPath = cmp.Or(o.ChainsPath, defaultChainsPath)
}

func (o *Options) check() error {
	if o.ChainsPath != "" && !filepath.IsLocal(o.ChainsPath) {
		return fmt.Errorf("chains_path: %q leaves the workspace; it is a folder in it, such as chains", o.ChainsPath)
	}
	return nil
}
