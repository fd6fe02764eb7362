package multiagent

import (
	"fmt"
	"strings"

	"a2e/protocol"
)

// briefOf is what a worker is told: who it is, what others have told it, and what to do.
func briefOf(c *child, def *protocol.TaskDefinition) string {
	var b strings.Builder
	part := func(format string, args ...any) {
		if b.Len() > 0 {
			b.WriteString("\n\n")
		}
		fmt.Fprintf(&b, format, args...)
	}
	if role := deref(c.config.Role); role != "" {
		part("You are %s. Your role: %s", c.config.Name, role)
	}
	if prompt := deref(c.config.SystemPrompt); prompt != "" {
		part("%s", prompt)
	}
	if len(c.mailbox) > 0 {
		part("Messages for you:")
		for _, l := range c.mailbox {
			b.WriteString("\n- " + l.text)
		}
	}
	if def.Name != "" {
		part("Task: %s", def.Name)
	}
	part("%s", def.Instruction)
	if len(def.SuccessCriteria) > 0 {
		part("The task is done when:")
		for _, text := range def.SuccessCriteria {
			b.WriteString("\n- " + text)
		}
	}
	b.WriteString("\n")
	return b.String()
}
