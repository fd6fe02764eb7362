package plugins_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"a2e/host/config"
	"a2e/plugins"
)

// What an untrusted config may set, option by option; exec is only kept when the plugin that
// set it for all is switched off. Whoever adds one here says that no
// value of it that its rule takes gives anybody more than they had.
const mayTighten = `chains.max_depth chains.max_items chains.max_nodes chains.max_parallel chains.max_result_bytes chains.max_state_bytes
env.max_steps learning.trust_agent_env
mcp.allowed_commands mcp.exec mcp.http_allow_private mcp.max_output_bytes mcp.pin mcp.register
memory.max_entry_bytes multi_agent.max_depth multi_agent.max_subagents
proc.allowed_commands proc.exec proc.max_output_bytes proc.max_procs proc.network_disabled proc.timeout
skill.allow_llm_override skill.max_output_bytes skill.max_turns skill.memory_bytes skill.network_disabled skill.trust_workspace skill.user_skills skill.workspace_skills
toolkits.allow_private toolkits.locked
tools.allowed_commands tools.deny tools.exec tools.http_allow_private tools.max_output_bytes tools.network_disabled tools.read_only tools.timeout`

func TestWhatMayTighten(t *testing.T) {
	var got []string
	for typ, tightening := range plugins.Tightening() {
		if tightening.Defaults == nil {
			t.Errorf("%s has no defaults", typ)
		}
		for name := range tightening.Rules {
			if _, is := optionsOf(tightening.Defaults)[name]; !is {
				t.Errorf("%s has no option %s", typ, name)
			}
			got = append(got, typ+"."+name)
		}
	}
	slices.Sort(got)
	if want := strings.Fields(mayTighten); !slices.Equal(got, want) {
		t.Errorf("rules for %q, want %q", got, want)
	}
}

// optionsOf returns the options of a struct and their Go types.
func optionsOf(defaults any) map[string]reflect.Type {
	all := make(map[string]reflect.Type)
	for f := range reflect.TypeOf(defaults).Fields() {
		all[f.Tag.Get("yaml")] = f.Type
	}
	return all
}

// Every option of every type, given in an untrusted config with values of every kind: none
// stops the host, what has no rule is left out, and what a rule takes fits the plugin.
func TestWallTrustEveryOption(t *testing.T) {
	values := []string{"true", "false", "0", "1", "-1", "2.5", "1000000000", "x", "any", "off", "[]", "[x]", "[sh, x]", "[sh, -c, x]", "{}", "{x: {command: sh}}", "[{name: x, command: [sh]}]",
		"http://127.0.0.1:1", `"${LEAK}"`, `"[${LEAK:-x}]"`, "/", "~", "null"}
	for typ, tightening := range plugins.Tightening() {
		t.Run(typ, func(t *testing.T) {
			for _, name := range slices.Sorted(maps.Keys(optionsOf(tightening.Defaults))) {
				_, rule := tightening.Rules[name]
				for i, value := range values {
					tryOption(t, typ, name, value, rule, i%2 == 0)
				}
			}
		})
	}
}

// tryOption tries a value in a mapping of plugins, or in a list.
func tryOption(t *testing.T, typ, name, value string, rule, mapping bool) {
	t.Helper()
	dir := t.TempDir()
	text := "plugins: [{name: " + typ + ", type: " + typ + ", metadata: {" + name + ": " + value + "}}]\n"
	path := "plugins, plugins[0].metadata."
	if mapping {
		text, path = "plugins: {"+typ+": {"+name+": "+value+"}}\n", "plugins."+typ+"."
	}
	if err := os.WriteFile(filepath.Join(dir, config.FolderFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	src := config.Source{Dir: dir, Available: plugins.Types(), Tighten: plugins.Tightening, Trust: func(string, []byte) error { return errors.New("no") }, Getenv: func(name string) string {
		if name == "LEAK" {
			t.Errorf("%s.%s: %s is looked up", typ, name, value)
		}
		return map[string]string{"HOME": dir}[name]
	}}
	cfg, warnings, err := config.Load(src)
	if err != nil {
		t.Fatalf("%s.%s: %s: %v", typ, name, value, err)
	}
	made, err := plugins.New(cfg, plugins.Deps{})
	if err != nil {
		t.Errorf("%s.%s: %s stops the host: %v", typ, name, value, err)
	}
	for _, p := range made {
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if len(warnings) == 1 && strings.Contains(warnings[0].Message, "it only tightens: "+path+name) && !rule {
		t.Errorf("%s.%s: %s counts without a rule", typ, name, value)
	}
	plain := config.Default(src)
	if i := slices.IndexFunc(plain.Plugins, func(p config.Plugin) bool { return p.Type == typ }); !rule && i >= 0 {
		at, left := 0, 1
		if mapping {
			at, left = i, len(plain.Plugins)
		}
		if len(cfg.Plugins) != left || !sameOptions(t, typ, cfg.Plugins[at], plain.Plugins[i]) {
			t.Errorf("%s.%s: %s gives %+v", typ, name, value, cfg.Plugins)
		}
	}
}

// sameOptions compares what the plugin makes of its entries.
func sameOptions(t *testing.T, typ string, a, b config.Plugin) bool {
	t.Helper()
	read := func(p config.Plugin) any {
		v := reflect.New(reflect.TypeOf(plugins.OptionTypes()[typ]))
		v.Elem().Set(reflect.ValueOf(plugins.OptionTypes()[typ]))
		if err := p.Options.Decode(v.Interface()); err != nil {
			t.Error(err)
		}
		return v.Elem().Interface()
	}
	return reflect.DeepEqual(read(a), read(b)) && a.Priority == b.Priority && a.Exclusive == b.Exclusive
}
