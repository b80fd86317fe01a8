package icefile

// ManifestsAtOnce are read from the store, which is far away. The library takes one for each processor, and a process
// that was quiet has one.
const ManifestsAtOnce = 8
