// The text of `millrace --version`.
#pragma once

#include <string>

namespace millrace::cli {

/// Returns "millrace 1.0.0", and behind it a line for each of: the compiler, the libraries in use, the programs beside
/// this one, the processor, FUSE, the system. Looks at this machine; takes milliseconds.
std::string VersionText();

}  // namespace millrace::cli
