package learning

import (
	"a2e/host/store"
)

// maxShelf bounds the text of all rows of a shelf, in bytes, whatever their number.
const maxShelf = 1 << 30

// maxRow bounds the text of one row.
const maxRow = 1 << 20

// shelf is a table that keeps the rows written last. Each has a number and a size.
type shelf struct {
	table, total string
	// takeOff undoes what else a row counts for, before it goes; nil = nothing.
	takeOff func(tx *store.Tx, number int64) error
}

func feedbackShelf() shelf {
	return shelf{"learning_feedback", totalFeedback, func(tx *store.Tx, number int64) error {
		r, err := readRating(tx, number)
		if err != nil {
			return err
		}
		return r.count(tx, -1)
	}}
}

func experienceShelf() shelf { return shelf{"learning_experiences", totalExperiences, nil} }

// trim counts what was added and removes the oldest rows beyond maxRows and maxShelf.
func (s shelf) trim(tx *store.Tx, rows, size, maxRows int64) error {
	sum, err := addTotal(tx, s.total, rows, size)
	if err != nil {
		return err
	}
	var gone total
	for sum.rows+gone.rows > maxRows || sum.size+gone.size > maxShelf {
		var number, size int64
		there, err := tx.Get("SELECT number, size FROM "+s.table+" ORDER BY number LIMIT 1", nil, &number, &size)
		if err != nil || !there {
			return err
		}
		if s.takeOff != nil {
			if err := s.takeOff(tx, number); err != nil {
				return err
			}
		}
		if _, _, err := tx.Exec("DELETE FROM "+s.table+" WHERE number = ?", number); err != nil {
			return err
		}
		gone.rows--
		gone.size -= size
	}
	if gone.rows != 0 {
		_, err = addTotal(tx, s.total, gone.rows, gone.size)
	}
	return err
}
