package store

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"path/filepath"

	"a2e/host/private"
)

// create makes the file if there is none. It gets its name when it is whole: a host that is
// killed before leaves nothing, so that an empty file is never one that was begun.
func create(dir *private.Dir, name string) error {
	if dir.Exists(name) {
		return nil
	}
	file, err := dir.Temp(name)
	if err != nil {
		return err
	}
	temp := filepath.Base(file.Name())
	_, err = file.Write(emptyFile())
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = dir.PlaceNew(temp, name)
	}
	if err != nil {
		_ = dir.Remove(temp)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil // another host was faster
	}
	return err
}

// emptyFile is an SQLite file without a table, whose pages end with checksums
// (https://www.sqlite.org/fileformat2.html#the_database_header).
func emptyFile() []byte {
	page := make([]byte, pageSize)
	copy(page, "SQLite format 3\x00")
	binary.BigEndian.PutUint16(page[16:], pageSize)
	page[18], page[19], page[reserveAt] = 2, 2, pageReserve // written and read with a log
	page[21], page[22], page[23] = 64, 32, 32               // as every file has it
	number := func(at int, n uint32) { binary.BigEndian.PutUint32(page[at:], n) }
	number(24, 1) // changes
	number(28, 1) // pages
	number(44, 4) // the format of the schema
	number(56, 1) // UTF-8
	number(versionAt, formatVersion)
	number(applicationAt, applicationID)
	number(92, 1)         // the change that the number of pages is of
	number(96, 3_046_000) // a version of SQLite; it is for people
	page[headerSize] = 13 // a leaf of a table, of the schema's: without a cell
	binary.BigEndian.PutUint16(page[headerSize+5:], pageSize-pageReserve)
	sum := checksum(page, 0)
	copy(page[pageSize-pageReserve:], sum[:])
	return page
}
