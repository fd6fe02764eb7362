package run

// openNonblock is not needed here.
const openNonblock = 0
