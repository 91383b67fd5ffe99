// Kills of processes that are no children of the test.
#pragma once

#include <sys/types.h>

namespace millrace::testing_support {

/// Kills a process by SIGKILL. Blocks until the system has closed its descriptors, also if its parent has not waited
/// for it. Does nothing if there is no such process.
void KillAndAwaitEnd(pid_t process);

}  // namespace millrace::testing_support
