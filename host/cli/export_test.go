package cli

// TakeStdout is takeStdout, for the test that prints where a library would.
var TakeStdout = takeStdout
