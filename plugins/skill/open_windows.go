package skill

// openNonblock is not needed here.
const openNonblock = 0
