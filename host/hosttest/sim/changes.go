//go:build linux

package sim

import (
	"fmt"
	"strings"
)

// memoryID is the memory_id of the default namespace and scope.
const memoryID = "mem_e952e9ec20f000fce84246c7"

// change draws a request with an effect that the model records.
func (d *draw) change() step {
	switch n := d.IntN(10); {
	case n < 5:
		return d.store()
	case n < 7:
		return d.forget()
	case n < 8 && d.plan != "":
		return d.addTask()
	default:
		return d.walk()
	}
}

// store draws new entries and new versions of existing ones; each version number is used once.
func (d *draw) store() step {
	m, versions, entries := d.model, map[string]int{}, []string{}
	for range 1 + d.IntN(4) {
		key := fmt.Sprintf("%s-%d%s", m.name, d.IntN(60), d.of("e", "s"))
		if _, twice := versions[key]; twice {
			continue
		}
		m.version++
		versions[key] = m.version
		if m.know(key) {
			m.keys = append(m.keys, key)
		}
		tier := map[byte]string{'e': "episodic", 's': "semantic"}[key[len(key)-1]]
		entries = append(entries, fmt.Sprintf(`{"key":{"id":%q},"content":{"v":%d,"text":%q},"tier":%q,"tags":["t%d"]}`,
			key, m.version, strings.Repeat(fmt.Sprintf("%s version%d ", m.name, m.version), 1+d.IntN(20)), tier,
			d.IntN(9)))
	}
	s := d.native("r", "memory/store/req", fmt.Sprintf(`"memory_id":%q,"entries":[%s]`, memoryID,
		strings.Join(entries, ",")))
	s.then = m.send(versions)
	return s
}

// forget draws some keys that may exist.
func (d *draw) forget() step {
	versions, keys := map[string]int{}, []string{}
	for range 1 + d.IntN(3) {
		if len(d.model.keys) > 0 {
			key := d.of(d.model.keys...)
			versions[key] = 0
			keys = append(keys, fmt.Sprintf(`{"id":%q}`, key))
		}
	}
	s := d.native("r", "memory/forget/req", fmt.Sprintf(`"memory_id":%q,"keys":[%s]`, memoryID,
		strings.Join(keys, ",")))
	s.then = d.model.send(versions)
	return s
}

// addTask draws a new task of the plan.
func (d *draw) addTask() step {
	m := d.model
	m.version++
	title := fmt.Sprintf("%s-task-%d.", m.name, m.version)
	s := d.native("r", "planning/task/add", fmt.Sprintf(`"plan_id":%q,"title":%q`, d.plan, title))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tasks[title] = open
	s.then = func(a *answer) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.tasks[title] = fateOf(a, a.Success)
	}
	return s
}

// claim claims a free task and reports it done. No other agent may get the same task.
func (d *draw) claim(h *host) {
	owner := fmt.Sprintf(`"plan_id":%q,"owner":%q`, d.plan, h.name)
	s := d.native("k", "planning/task/update", owner+`,"action":"claim","lease":60`)
	task := d.last
	h.do(s)
	s = d.native("k", "planning/task/update", owner+`,"task_id":"<<`+task+` task_id>>","status":"done"`)
	s.then = func(a *answer) {
		h.sim.mu.Lock()
		by := h.sim.done[a.get("task_id")]
		if a.Success {
			h.sim.done[a.get("task_id")] = h.name
		}
		h.sim.mu.Unlock()
		if a.Success && by != "" {
			h.fail("a task that %s has done is done again: %s", by, a.line)
		}
	}
	h.do(s)
}

// walk draws a step in the only episode of the model in this life.
func (d *draw) walk() step {
	m := d.model
	if d.spawned["walk"] == "" {
		s := d.native("k", "env/reset/req", `"env_name":"gridworld","seed":7`)
		d.spawned["walk"] = d.last
		m.mu.Lock()
		defer m.mu.Unlock()
		m.episode, m.steps = "", [2]int{}
		s.then = func(a *answer) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.episode = a.get("obs/episode_id")
		}
		return s
	}
	s := d.native("r", "env/step/req", `"episode_id":"<<`+d.spawned["walk"]+` obs/episode_id>>","action":{"type":"up"}`)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps[1]++
	s.then = func(a *answer) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if fateOf(a, true) == happened {
			m.steps[0]++
		}
	}
	return s
}

// chain draws a chain with a journal, each of whose nodes writes its name into a file.
func (d *draw) chain() step {
	c := &chain{id: d.id("chain"), steps: 2 + d.IntN(5)}
	var nodes []string
	for i := range c.steps {
		deps, id := "", fmt.Sprint("n", i)
		if i > 0 && d.IntN(3) > 0 {
			deps = fmt.Sprintf(`,"deps":["n%d"]`, d.IntN(i))
		}
		nodes = append(nodes, fmt.Sprintf(`{"node_id":%q,"kind":"tool","name":"run_command","input":{"command":["bash","-c","echo %s >> effects-%s"]}%s}`, id, id, c.id, deps))
	}
	c.nodes = strings.Join(nodes, ",")
	m := d.model
	m.mu.Lock()
	m.chains = append(m.chains, c)
	m.mu.Unlock()
	s := d.native("r", "chain/req", fmt.Sprintf(`"chain_id":%q,"journal":true,"nodes":[%s]`, c.id, c.nodes))
	return s
}

// know reports whether a key is new.
func (m *model) know(key string) bool {
	for _, k := range m.keys {
		if k == key {
			return false
		}
	}
	return true
}
