package host

// The settings of components that some plugin follows.
const (
	// SettingTimeout is how many seconds a call of a tool may take, a float64. It takes the
	// place of the tool's own limit; the request's limit holds beside it.
	SettingTimeout = "timeout"
	// SettingDeferred is a bool: whether a tool is left out where deferred tools are not asked for.
	SettingDeferred = "deferred"
)

// ComponentSettings is a plugin that keeps settings of components, which take the place
// of what the component says itself. Find finds it.
type ComponentSettings interface {
	// Setting gives what a component was set to; nil = nothing. It must be quick: calls ask.
	Setting(kind, component, name string) any
}
