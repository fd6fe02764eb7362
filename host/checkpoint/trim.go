package checkpoint

// trim removes the oldest checkpoints until there are at most so many, and contents that leave room
// for some more bytes. The last one always stays.
func (s *store) trim(count int, most, need int64) error {
	drop := max(0, len(s.metas)-max(count, 1))
	if s.blobs.bytes.Load()+need > most {
		byBytes, err := s.dropFor(most - need)
		if err != nil {
			return err
		}
		drop = max(drop, byBytes)
	}
	candidates := make(map[sum]bool)
	for i := range s.metas[:min(drop+1, len(s.metas))] { // what is behind the first that stays goes too
		changes, err := s.changes(&s.metas[i])
		if err != nil {
			return err
		}
		for _, c := range changes {
			if c.old != nil && c.old.kind == aFile && c.old.held == heldWhole {
				candidates[c.old.sum] = true
			}
		}
	}
	if err := s.compact(drop); err != nil {
		return err
	}
	last, err := s.uses()
	if err != nil {
		return err
	}
	for is := range candidates {
		if _, used := last[is]; !used {
			s.blobs.remove(is)
		}
	}
	return s.writeIndex(s.last().ID) // with the bytes that there are now
}

// uses tells for each content which checkpoint is the last that needs it, by its place among metas;
// those of the state there is now are needed for good.
func (s *store) uses() (map[sum]int, error) {
	last := make(map[sum]int)
	for i := range s.metas {
		changes, err := s.changes(&s.metas[i])
		if err != nil {
			return nil, err
		}
		for _, c := range changes {
			if i > 0 && c.old != nil && c.old.kind == aFile { // to go back to the one before
				last[c.old.sum] = max(last[c.old.sum], i-1)
			}
			if c.new != nil && c.new.kind == aFile {
				last[c.new.sum] = max(last[c.new.sum], i)
			}
		}
	}
	for _, e := range s.tree.below("") {
		if e.kind == aFile && e.held == heldWhole {
			last[e.sum] = len(s.metas) - 1
		}
	}
	return last, nil
}

// dropFor returns how many checkpoints have to go so that at most so many bytes are left, and removes
// contents that nothing needs.
func (s *store) dropFor(most int64) (int, error) {
	last, err := s.uses()
	if err != nil {
		return 0, err
	}
	freed := make([]int64, len(s.metas)) // by dropping each
	var total int64
	var gone []sum
	err = s.blobs.each(func(is sum, size int64) {
		total += size
		if at, used := last[is]; used {
			freed[at] += size
		} else {
			gone = append(gone, is) // of a checkpoint that did not come about
		}
	})
	s.blobs.bytes.Store(total)
	for _, is := range gone {
		s.blobs.remove(is)
	}
	total = s.blobs.bytes.Load()
	drop := 0
	for ; total > most && drop < len(s.metas)-1; drop++ {
		total -= freed[drop]
	}
	return drop, err
}
