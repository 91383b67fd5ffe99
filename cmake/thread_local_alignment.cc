// Linked into every program that mold links. mold 1.10 (Debian 12) places thread-local data without initial values
// before the page on which the data begin that are read-only after relocation, if that page begins there and the
// alignment of the thread-local data is the smaller one. The program then does not start: "cannot apply additional
// memory protection after relocation". The alignment of this variable is greater than that of any section behind it.
__attribute__((used)) static thread_local char alignment __attribute__((aligned(64)));
