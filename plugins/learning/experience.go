package learning

import (
	"context"
	"fmt"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// experience answers learn/experience: all of the batch is kept, or nothing. An
// experience takes the place of an earlier one with its id.
func (p *Plugin) experience(ctx context.Context, req *protocol.LearnExperienceRequest, _ host.Emitter) (*protocol.LearnExperienceResponse, error) {
	var problems []protocol.FieldError
	records := make([][]byte, len(req.Experiences))
	for i := range req.Experiences {
		x := &req.Experiences[i]
		if x.ExperienceID == "" {
			x.ExperienceID = newID()
		}
		if x.TS == 0 {
			x.TS = inSeconds(p.nowMicros())
		}
		raw, err := experienceRecord(x)
		if err != nil {
			problems = append(problems, protocol.FieldError{Path: fmt.Sprintf("/experiences/%d", i), Message: err.Error()})
		}
		if len(problems) >= maxProblems {
			break
		}
		records[i] = raw
	}
	if problems != nil {
		return nil, protocol.Violation(problems...)
	}
	resp := &protocol.LearnExperienceResponse{Stored: len(records)}
	if len(records) == 0 {
		return resp, nil
	}
	return resp, p.write(ctx, func(tx *store.Tx) error {
		var added total
		for i, raw := range records {
			more, err := putExperience(tx, req.Experiences[i].ExperienceID, raw)
			if err != nil {
				return err
			}
			added.rows += more.rows
			added.size += more.size
		}
		return experienceShelf().trim(tx, added.rows, added.size, int64(p.opts.MaxExperiences))
	})
}

// experienceRecord is an experience as the store has it. The error is the end of a
// sentence about it.
func experienceRecord(x *protocol.Experience) ([]byte, error) {
	if len(x.ExperienceID) > maxID {
		return nil, fmt.Errorf("has an experience_id of %d bytes; at most %d are allowed", len(x.ExperienceID), maxID)
	}
	if !(x.TS >= 0 && x.TS < maxSeconds) {
		return nil, fmt.Errorf("has a ts of %g; should be seconds since 1970", x.TS)
	}
	raw, err := protocol.AppendJSON(nil, x)
	if err == nil && len(raw) > maxRow {
		err = fmt.Errorf("has %d bytes; at most %d are allowed", len(raw), maxRow)
	}
	return raw, err
}

// putExperience keeps one experience, in place of one with its id.
func putExperience(tx *store.Tx, id string, raw []byte) (added total, err error) {
	var number, oldSize int64
	there, err := tx.Get("SELECT number, size FROM learning_experiences WHERE id = ?", []any{id}, &number, &oldSize)
	if err != nil {
		return added, err
	}
	size := int64(len(raw))
	if there {
		_, _, err = tx.Exec("UPDATE learning_experiences SET size = ?, record = ? WHERE number = ?", size, string(raw), number)
		return total{0, size - oldSize}, err
	}
	_, _, err = tx.Exec("INSERT INTO learning_experiences (id, size, record) VALUES (?, ?, ?)", id, size, string(raw))
	return total{1, size}, err
}
