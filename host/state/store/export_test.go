package store

// Checksum returns the checksum of a page, for tests that make files.
var Checksum = checksum
