package mcpserve

// kind is what later versions of MCP have in each result.
type kind struct {
	ResultType string `json:"resultType,omitempty"`
}
