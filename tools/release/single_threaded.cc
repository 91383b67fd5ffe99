// Linked into the wheel's module. libstdc++ asks the C library whether a process has one thread, to count references
// without atomics: since glibc 2.32, by a variable. Debian's archives read it as only programs may. This one of the
// module's own says "several threads", which is always right.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
