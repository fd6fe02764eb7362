package chains

// openNonblock is not needed here.
const openNonblock = 0
