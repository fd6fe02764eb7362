// Package hardlink tells how many names a file has. A second name of a file in a folder may
// lie outside of it, where nothing that is said of the folder holds.
package hardlink
