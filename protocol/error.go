package protocol

import (
	"errors"
	"fmt"
)

// ErrorCode is the `code` of an `error` message. Unknown codes stay unchanged.
type ErrorCode string

// The codes of protocol/README.md, section 4.
const (
	CodeParseError        ErrorCode = "parse_error"
	CodeInvalidMessage    ErrorCode = "invalid_message"
	CodeSchemaViolation   ErrorCode = "schema_violation"
	CodeVersionMismatch   ErrorCode = "version_mismatch"
	CodeUnauthorized      ErrorCode = "unauthorized"
	CodeCapabilityMissing ErrorCode = "capability_missing"
	CodeTimeout           ErrorCode = "timeout"
	CodeOverloaded        ErrorCode = "overloaded"
	CodeCancelled         ErrorCode = "cancelled"
	CodeRuntimeError      ErrorCode = "runtime_error"
	CodeOutOfMemory       ErrorCode = "out_of_memory"
	CodeSandboxCrash      ErrorCode = "sandbox_crash"
	CodeStoreUnavailable  ErrorCode = "store_unavailable"

	CodeUnknownTool ErrorCode = "unknown_tool"
	CodeToolDenied  ErrorCode = "tool_denied"
	CodeToolError   ErrorCode = "tool_error"

	CodeUnknownSkill ErrorCode = "unknown_skill"
	CodeSkillError   ErrorCode = "skill_error"

	CodeUnknownEnv     ErrorCode = "unknown_env"
	CodeUnknownAction  ErrorCode = "unknown_action"
	CodeResetDenied    ErrorCode = "reset_denied"
	CodeUnknownEpisode ErrorCode = "unknown_episode"
	CodeEpisodeDone    ErrorCode = "episode_done"

	CodeUnknownProc ErrorCode = "unknown_proc"
	CodeProcDead    ErrorCode = "proc_dead"
	CodeProcLimit   ErrorCode = "proc_limit"

	CodeMemoryFull     ErrorCode = "memory_full"
	CodeMemoryNotFound ErrorCode = "memory_not_found"

	CodeChainCycle     ErrorCode = "chain_cycle"
	CodeChainNodeError ErrorCode = "chain_node_error"

	CodeMCPServerNotFound    ErrorCode = "mcp_server_not_found"
	CodeMCPToolNotFound      ErrorCode = "mcp_tool_not_found"
	CodeMCPResourceNotFound  ErrorCode = "mcp_resource_not_found"
	CodeMCPPromptNotFound    ErrorCode = "mcp_prompt_not_found"
	CodeMCPProtocolError     ErrorCode = "mcp_protocol_error"
	CodeMCPSamplingRefused   ErrorCode = "mcp_sampling_refused"
	CodeMCPCapabilityMissing ErrorCode = "mcp_capability_missing"
	CodeMCPServerUnavailable ErrorCode = "mcp_server_unavailable"
	CodeMCPTransportError    ErrorCode = "mcp_transport_error"

	CodeUnknownSubagent ErrorCode = "unknown_subagent"
	CodeSubagentLimit   ErrorCode = "subagent_limit"
)

// Retryable reports whether the same request may succeed when it is sent again
// unchanged, as listed in protocol/README.md, section 4. Codes for which that depends on the case
// (`tool_error`, `chain_node_error`) count as not retryable here.
func (c ErrorCode) Retryable() bool {
	switch c {
	case CodeTimeout, CodeOverloaded, CodeRuntimeError, CodeOutOfMemory, CodeSandboxCrash, CodeStoreUnavailable,
		CodeSkillError, CodeProcLimit, CodeMCPServerUnavailable, CodeMCPTransportError:
		return true
	}
	return false
}

// Error is the body of an `error` message and the error type that handlers
// return: Message says what was wrong and what would be right.
type Error struct {
	Code           ErrorCode      `json:"code"`
	Message        string         `json:"message"`
	Detail         map[string]any `json:"detail"`
	Retryable      bool           `json:"retryable"`
	CapabilityName string         `json:"capability_name"`

	cause error
}

// Errorf makes an Error with the code's usual retryable flag. A %w verb keeps
// its operand for errors.Is and errors.As. The operand's text becomes part of
// the message, so do not wrap an error that contains a secret.
func Errorf(code ErrorCode, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Retryable: code.Retryable(), cause: errors.Unwrap(err)}
}

// With adds one entry to Detail and returns e itself.
func (e *Error) With(key string, value any) *Error {
	if e.Detail == nil {
		e.Detail = make(map[string]any, 1)
	}
	e.Detail[key] = value
	return e
}

// Error implements error.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap returns the operand of Errorf's %w verb, or nil.
func (e *Error) Unwrap() error { return e.cause }

// FieldError is one entry of `detail.errors` of a `schema_violation`.
type FieldError struct {
	Path    string `json:"path"`    // JSON Pointer into the message, such as "/arguments/path"
	Message string `json:"message"` // what is wrong and what would be right
}

// Violation makes a `schema_violation`. Its message is the first problem and
// its detail lists all problems.
func Violation(problems ...FieldError) *Error {
	e := &Error{Code: CodeSchemaViolation}
	if len(problems) > 0 {
		e.Message = problems[0].Path + ": " + problems[0].Message
		if more := len(problems) - 1; more > 0 {
			e.Message += fmt.Sprintf(" (and %d more)", more)
		}
	}
	return e.With("errors", problems)
}

// Wrong makes a `schema_violation` of one field.
func Wrong(path, format string, args ...any) *Error {
	return Violation(FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}
