package store

// Checksum is that of a page, for tests that make files.
var Checksum = checksum
