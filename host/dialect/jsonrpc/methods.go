package jsonrpc

import (
	"github.com/rs/zerolog"

	"a2e/protocol/jsonrpc"
)

// methods is what is served.
func methods() map[string]method {
	return map[string]method{
		jsonrpc.Handshake:          {run: handshake},
		jsonrpc.Ping:               {run: ping, at: free},
		jsonrpc.Shutdown:           {run: shutdown, at: free},
		jsonrpc.StateGet:           {run: stateGet, at: asking},
		jsonrpc.SessionCreate:      {run: sessionCreate},
		jsonrpc.SessionGet:         {run: onSession(sessionGet)},
		jsonrpc.SessionSend:        {run: onSession(sessionSend, "text")},
		jsonrpc.SessionSteer:       {run: onSession(sessionSteer, "text"), at: steering},
		jsonrpc.SessionInterrupt:   {run: onSession(sessionInterrupt)},
		jsonrpc.QueueList:          {run: onSession(queueList)},
		jsonrpc.QueueClear:         {run: onSession(queueClear)},
		jsonrpc.CommandExecute:     {run: onSession(commandExecute, "raw_command"), at: running},
		jsonrpc.ToolsList:          {run: toolsList, at: asking},
		jsonrpc.SkillsList:         {run: skillsList, at: asking},
		jsonrpc.HistoryList:        {run: historyList},
		jsonrpc.HistoryGet:         {run: onSession(historyGet)},
		jsonrpc.HistoryClear:       {run: onSession(historyClear)},
		jsonrpc.LimitsGet:          {run: limitsGet},
		jsonrpc.ModelList:          {run: modelList, at: free},
		jsonrpc.ModelSelect:        {run: modelSelect},
		jsonrpc.AuthStatus:         {run: authStatus, at: free},
		jsonrpc.DebugSet:           {run: debugSet, at: free},
		jsonrpc.OnboardingStatus:   {run: onboardingStatus},
		jsonrpc.OnboardingComplete: {run: onboardingComplete},
	}
}

func (f *Front) logger() *zerolog.Logger {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := f.log
	return &log
}
