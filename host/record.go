package host

import "time"

// The kinds of components.
const (
	KindTool   = "tool"
	KindSkill  = "skill"
	KindEnv    = "env"
	KindWorker = "worker"
	KindChain  = "chain"
)

// CallRecord is what became of one call of a component.
type CallRecord struct {
	Kind        string
	Component   string // the tool's, skill's, environment's… name
	Correlation string // the request's correlation_id, or its id; feedback names the call by it
	Success     bool
	Duration    time.Duration
	Reward      *float64 // of an environment's step
}

// Recorder is a plugin that counts calls.
type Recorder interface {
	// RecordCall takes one call in. It must not block and costs well under a
	// microsecond: it is called on the way of every answer.
	RecordCall(CallRecord)
}

// Weigher is a plugin that knows how well components did.
type Weigher interface {
	// Weight gives the routing weight of a component: 1 is neutral, more is better, never
	// negative. It must be quick.
	Weight(kind, component string) float64
}
